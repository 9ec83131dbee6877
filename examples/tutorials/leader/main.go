// Command leader counts in one of several processes at a time. See docs/tutorials/leader.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/claim/elect"
	_ "github.com/interlock-dev/interlock/driver/etcd"
)

func main() {
	backend := flag.String("backend", "etcd://127.0.0.1:7460?ttl=5s", "where the candidates meet")
	identity := flag.String("as", fmt.Sprint("process-", os.Getpid()), "name of this candidate")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	elections, err := elect.Open(ctx, *backend, &elect.Options{Identity: *identity})
	if err != nil {
		log.Fatal(err)
	}
	defer elections.Close(context.Background())
	err = elections.Run(ctx, "counter", lead)
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// lead runs in the leader only. Its context ends with the leadership.
func lead(ctx context.Context, term *elect.Term) error {
	log.Print("leading with token ", term.Token())
	for ctx.Err() == nil {
		time.Sleep(time.Second) // pause the process here for longer than its lease
		if err := count(term); err != nil {
			log.Print("the write was rejected: ", err)
			return err
		}
	}
	return nil
}

// count reads and writes under the term's token. It does not check the leadership, because a
// process can be paused right after a check: the store rejects a stale write.
func count(term *elect.Term) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	data, err := term.Load(ctx, "count")
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(string(data)) // 0 before the first term
	if err := term.Save(ctx, "count", []byte(strconv.Itoa(n+1))); err != nil {
		return err
	}
	log.Print("counted to ", n+1)
	return nil
}
