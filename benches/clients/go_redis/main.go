// Clients of go-redis without retries of their own: every error that the library gives back is counted, and every connection that
// was lost and replaced without one, since the library looks at an idle connection before it uses it and dials again in silence.
//
// Arguments: host, port, clients, seconds. Writes one line of JSON. With `maintenance` behind them, or `maintenance off`,
// it is the program of maintenance.go; with `sentinel` and its arguments only, that of sentinel.go. `version` prints the library's.
//
// Those that speak RESP3 ask to be told of maintenance, as the library does unless it is told otherwise.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

type seen struct {
	lock sync.Mutex
	// Until then the machine is busy with starting everybody, which is no pause.
	settled   time.Time
	Library   string         `json:"library"`
	Answered  int            `json:"answered"`
	Errors    int            `json:"errors"`
	Wrong     int            `json:"wrong"`
	LongestMs int64          `json:"longest_ms"`
	LongestAt int64          `json:"longest_at"`
	ErrorsAt  []int64        `json:"errors_at"`
	Kinds     map[string]int `json:"kinds"`
	Told      map[string]int `json:"told,omitempty"`
	// Connections opened after the start, by maintenance.go.
	Reconnects int `json:"reconnects"`
}

// note counts an error; at: when the request was begun.
func (all *seen) note(kind string, at time.Time) {
	all.Errors++
	all.ErrorsAt = append(all.ErrorsAt, at.UnixMilli())
	all.Kinds[kind]++
}

// wrong counts a wrong reply, and shows the first few.
func (all *seen) wrong(format string, words ...any) {
	if all.Wrong++; all.Wrong <= 20 {
		fmt.Fprintf(os.Stderr, format, words...)
	}
}

func (all *seen) took(begin time.Time) {
	if pause := time.Since(begin).Milliseconds(); begin.After(all.settled) && pause > all.LongestMs {
		all.LongestMs, all.LongestAt = pause, begin.UnixMilli()
	}
}

// secured is the way to speak TLS, if the environment names the files for it.
func secured() *tls.Config {
	ca, set := os.LookupEnv("CLIENTS_CA")
	if !set {
		return nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		panic(err)
	}
	own, err := tls.LoadX509KeyPair(os.Getenv("CLIENTS_CERTIFICATE"), os.Getenv("CLIENTS_KEY"))
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}
}

// client is one of the many, with one connection at a time.
type client struct {
	redis *redis.Client
	name  string
	// Connections that were set up; the first one, and the one after an error, have their reason.
	connections, explained int
}

func newClient(address string, number int) *client {
	it := &client{name: fmt.Sprintf("go-%d", number), explained: 1}
	it.redis = redis.NewClient(&redis.Options{
		Addr: address, Username: "app", Password: "pw", DB: number % 16, ClientName: it.name, Protocol: 2 + number%2,
		PoolSize: 1, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: 30 * time.Second, ReadTimeout: 30 * time.Second, PoolTimeout: 60 * time.Second,
		TLSConfig: secured(),
		// Called by the goroutine that asks, since there is no other that dials.
		OnConnect: func(context.Context, *redis.Conn) error {
			it.connections++
			return nil
		},
	})
	return it
}

func (it *client) ask(ctx context.Context) (value int64, name string, err error) {
	if value, err = it.redis.Incr(ctx, it.name).Result(); err == nil {
		name, err = it.redis.ClientGetName(ctx).Result()
	}
	return
}

func (it *client) live(end time.Time, all *seen) {
	expected := int64(0)
	for ctx := context.Background(); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		begin := time.Now()
		value, name, err := it.ask(ctx)
		all.lock.Lock()
		if it.connections > it.explained {
			all.note("connection lost", begin)
			it.explained = it.connections
			if err == nil {
				// What the new connection's master knows of the counter is unknown.
				expected = value
			}
		}
		if err == nil {
			all.Answered += 2
			if expected != 0 && value != expected {
				all.wrong("%s: %d came and not %d\n", it.name, value, expected)
			}
			if name != it.name {
				all.wrong("%s is called %s\n", it.name, name)
			}
			expected = value + 1
		} else {
			all.note(fmt.Sprintf("%T: %v", err, err), begin)
			// The connection is given up, so the next one is explained. Whether the request ran is unknown.
			it.explained, expected = it.connections+1, 0
		}
		all.took(begin)
		all.lock.Unlock()
	}
	it.redis.Close()
}

func number(text string) int {
	number, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return number
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "sentinel" {
		sentinel(os.Args[2:])
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println("go-redis", redis.Version())
		return
	}
	if len(os.Args) < 5 {
		panic("host, port, clients, seconds")
	}
	address, count := net.JoinHostPort(os.Args[1], os.Args[2]), number(os.Args[3])
	end := time.Now().Add(time.Duration(number(os.Args[4])) * time.Second)
	all := &seen{Library: "go-redis " + redis.Version(), ErrorsAt: []int64{}, Kinds: map[string]int{}}
	if settle := os.Getenv("CLIENTS_SETTLE"); settle != "" {
		all.settled = time.Now().Add(time.Duration(number(settle)) * time.Second)
	}
	var everybody sync.WaitGroup
	live := func(number int) {
		time.Sleep(100 * time.Millisecond * time.Duration(number) / time.Duration(count))
		newClient(address, number).live(end, all)
	}
	if len(os.Args) > 5 && os.Args[5] == "maintenance" {
		all.Told = map[string]int{}
		live = maintained(address, len(os.Args) > 6 && os.Args[6] == "off", end, all)
	}
	for number := 0; number < count; number++ {
		everybody.Add(1)
		go func() {
			defer everybody.Done()
			live(number)
		}()
	}
	everybody.Wait()
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}
