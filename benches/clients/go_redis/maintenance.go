package main

import (
	"context"
	"fmt"
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
// outlast a pause by the word of it: it reads the word behind a request that it has sent, when the deadline of that read stands
// already, and gives only the next one more time. So its timeout has to be longer than the pause.
func maintained(address string, end time.Time, all *seen) func(number int) {
	pool := redis.NewClient(&redis.Options{
		Addr: address, Protocol: 3, MaxRetries: -1, DialerRetries: 1, ReadTimeout: 6 * time.Second,
		// Four connections that take turns, so that each of them hears what it is told.
		PoolSize: 4, MinIdleConns: 4, PoolFIFO: true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeEnabled, EndpointType: maintnotifications.EndpointTypeNone,
		},
	})
	pool.GetMaintNotificationsManager().AddNotificationHook(&told{all: all})
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
