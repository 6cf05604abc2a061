package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/redis/go-redis/v9/push"
)

// told counts what the library is told, and what it could not make use of.
type told struct {
	all *seen
}

func (it *told) count(kind string) {
	it.all.lock.Lock()
	it.all.Told[kind]++
	it.all.lock.Unlock()
}

func (it *told) PreHook(
	_ context.Context, _ push.NotificationHandlerContext, kind string, words []interface{},
) ([]interface{}, bool) {
	it.count(kind)
	return words, true
}

func (it *told) PostHook(
	_ context.Context, _ push.NotificationHandlerContext, kind string, words []interface{}, err error,
) {
	if err != nil {
		it.count(fmt.Sprintf("refused %v: %v", words, err))
	}
}

// maintained is what each goroutine does: all of them share one pool, without retries. Unlike redis-py, this library does not
// outlast a pause through its notification: it reads that after it has sent a request, when the deadline of the read stands
// already, and gives only the next one more time. CLIENTS_TIMEOUT shows it; by default the timeout is longer than the pause.
// With `off` the library does not ask for notifications.
func maintained(address string, off bool, end time.Time, all *seen) func(number int) {
	timeout := 6 * time.Second
	if text := os.Getenv("CLIENTS_TIMEOUT"); text != "" {
		timeout = time.Duration(number(text)) * time.Second
	}
	mode := maintnotifications.ModeEnabled
	if off {
		mode = maintnotifications.ModeDisabled
	}
	pool := redis.NewClient(&redis.Options{
		Addr: address, Protocol: 3, MaxRetries: -1, DialerRetries: 1, ReadTimeout: timeout,
		// Four connections that take turns, so that each of them hears what it is told.
		PoolSize: 4, MinIdleConns: 4, PoolFIFO: true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: mode, EndpointType: maintnotifications.EndpointTypeNone,
		},
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if time.Now().After(all.settled) {
				all.lock.Lock()
				all.Reconnects++
				all.lock.Unlock()
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	})
	if !off {
		pool.GetMaintNotificationsManager().AddNotificationHook(&told{all: all})
	}
	return func(number int) {
		expected, key := int64(0), fmt.Sprintf("go-%d", number)
		for ctx := context.Background(); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			begin := time.Now()
			value, err := pool.Incr(ctx, key).Result()
			all.lock.Lock()
			if err != nil {
				all.note(fmt.Sprintf("%T: %v", err, err), begin)
				expected = 0
			} else {
				all.Answered++
				if expected != 0 && value != expected {
					all.Wrong++
				}
				expected = value + 1
			}
			all.took(begin)
			all.lock.Unlock()
		}
	}
}
