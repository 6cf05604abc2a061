package redis_test

import (
	"context"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// Debian's package leaves out the file that declares it.
var ctx = context.Background()

// Pointsman verifies a session on a connection of its own and gives that up 50 ms later. Most tests
// are shorter than that, and would never use a shared connection without the pause.
func pauseAfterHandshake(context.Context, *redis.Conn) error {
	pause, err := time.ParseDuration(os.Getenv("PAUSE_MS") + "ms")
	time.Sleep(pause)
	return err
}
