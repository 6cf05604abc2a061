// Clients of go-redis that ask sentinels for the master: writers, and a reader of the write acknowledged last.
//
// Arguments: the master's name, sentinels (host:port,...), the prefix of all keys, writers, writes per second of all of them, and
// the time in seconds after which a connection is given up. Writes a line per outcome; harness::LoadBuilder::start_program reads
// them. Everything else is as the library has it, its retries included.
package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var newest atomic.Value

func master(name string, sentinels []string, timeout time.Duration) *redis.Client {
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: name, SentinelAddrs: sentinels,
		DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
	})
}

func attempt(act func(context.Context) error) {
	if err := act(context.Background()); err != nil {
		fmt.Println("err", strings.ReplaceAll(fmt.Sprintf("%T: %v", err, err), "\n", " "))
		time.Sleep(20 * time.Millisecond)
	}
}

func write(client *redis.Client, prefix string, writer int, pause time.Duration) {
	due := time.Now()
	for number := 0; ; number++ {
		time.Sleep(time.Until(due))
		if now := time.Now(); now.After(due) {
			due = now
		}
		due = due.Add(pause)
		attempt(func(ctx context.Context) error {
			key := fmt.Sprintf("%s:%d:%d", prefix, writer, number)
			err := client.Set(ctx, key, "1", 0).Err()
			if err == nil {
				newest.Store(key)
				fmt.Println("ok", writer, number)
			}
			return err
		})
	}
}

func read(client *redis.Client) {
	for ; ; time.Sleep(20 * time.Millisecond) {
		key, some := newest.Load().(string)
		if !some {
			continue
		}
		attempt(func(ctx context.Context) error {
			value, err := client.Get(ctx, key).Result()
			if err == redis.Nil || err == nil && value != "1" {
				fmt.Println("wrong")
				return nil
			}
			return err
		})
	}
}

func sentinel(args []string) {
	if len(args) != 6 {
		panic("name, sentinels, prefix, writers, rate, seconds")
	}
	name, sentinels, prefix := args[0], strings.Split(args[1], ","), args[2]
	writers, rate, timeout := number(args[3]), number(args[4]), time.Duration(number(args[5]))*time.Second
	pause := time.Second * time.Duration(writers) / time.Duration(rate)
	for writer := 0; writer < writers; writer++ {
		go write(master(name, sentinels, timeout), prefix, writer, pause)
	}
	read(master(name, sentinels, timeout))
}
