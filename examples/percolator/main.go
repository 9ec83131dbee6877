// Command percolator moves money between accounts in etcd, Redis and PostgreSQL. Tellers are
// processes that are stopped for longer than their locks last, or killed, at any time, and
// restarted. An audit sums the money in successive snapshots, and always gets the same
// sum.
//
// It does not make Redis more durable than it is: run it with --appendonly yes
// --appendfsync always, if you kill the stores too.
//
//	percolator -redis redis://127.0.0.1:6379 -etcd etcd://127.0.0.1:2379 -postgres postgres://me@127.0.0.1/test
//
// bank.go has the pattern. It writes keys that begin with percolator/, and the table
// interlock_kv of PostgreSQL.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	tellers  = 3
	patience = 20 * time.Second       // of one transaction, if stores are down
	lockTTL  = 500 * time.Millisecond // how long a killed teller blocks its accounts
)

// settings of a run; tellers get them as arguments.
type settings struct {
	redis, etcd, postgres string
	length                time.Duration
	teller                bool
}

func main() {
	var s settings
	flag.StringVar(&s.redis, "redis", "redis://127.0.0.1:6379", "`URL` of Redis")
	flag.StringVar(&s.etcd, "etcd", "etcd://127.0.0.1:2379", "`URL` of etcd")
	flag.StringVar(&s.postgres, "postgres", "postgres://127.0.0.1/test", "`URL` of PostgreSQL")
	flag.DurationVar(&s.length, "for", 10*time.Second, "how long tellers work")
	flag.BoolVar(&s.teller, "teller", false, "be a teller; the command itself sets it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx, s, os.Stdout); err != nil {
		log.Fatal("percolator: ", err)
	}
}

func start(ctx context.Context, s settings, out io.Writer) error {
	b, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer b.close()
	if s.teller {
		b.tell(ctx, out)
		return nil
	}
	if err := b.deposit(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.length)
	defer cancel()
	var running sync.WaitGroup
	var moved lines
	var killed atomic.Int64
	for range tellers {
		running.Go(func() {
			for ctx.Err() == nil {
				if killTeller(s, &moved) {
					killed.Add(1)
				}
			}
		})
	}
	audits, wrong := b.auditUntil(ctx)
	running.Wait()
	if err := errors.Join(wrong, b.mustSum(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	if moved.Load() == 0 {
		return errors.New("no teller made a transfer, so the audits prove nothing")
	}
	fmt.Fprintf(out, "%d transfers, %d tellers killed, %d audits, each of %d\n", moved.Load(), killed.Load(), audits+1, opening*len(accounts))
	return nil
}

// killTeller starts a teller and kills it after a while. It first stops half of the tellers
// until their locks have expired, and continues them for a moment. It returns false if the
// teller ended by itself, because a store was down.
func killTeller(s settings, out io.Writer) bool {
	teller := exec.Command(os.Args[0], "-redis", s.redis, "-etcd", s.etcd, "-postgres", s.postgres, "-teller")
	teller.Stdout = out
	started := teller.Start() == nil
	time.Sleep(time.Duration(300+rand.IntN(600)) * time.Millisecond)
	if !started {
		return false
	}
	if rand.IntN(2) == 0 {
		_ = teller.Process.Signal(syscall.SIGSTOP)
		time.Sleep(2 * lockTTL)
		_ = teller.Process.Signal(syscall.SIGCONT)
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	}
	_ = teller.Process.Kill() // SIGKILL, at any point of its work
	_ = teller.Wait()
	return !teller.ProcessState.Exited()
}

// auditUntil sums the money until ctx ends, and returns how often it did.
func (b *bank) auditUntil(ctx context.Context) (audits int, wrong error) {
	for ctx.Err() == nil && wrong == nil {
		sum, err := b.audit(ctx)
		if err != nil {
			continue // a store is down, or ctx has ended
		}
		audits++
		wrong = check(sum)
	}
	return audits, wrong
}

// mustSum sums the money, as soon as all stores answer.
func (b *bank) mustSum(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if sum, err := b.audit(ctx); err == nil {
			return check(sum)
		} else if ctx.Err() != nil {
			return err
		}
	}
}

func check(sum int) error {
	if want := opening * len(accounts); sum != want {
		return fmt.Errorf("an audit counts %d, there are %d", sum, want)
	}
	return nil
}

// lines counts lines.
type lines struct{ atomic.Int64 }

func (l *lines) Write(text []byte) (int, error) {
	l.Add(int64(bytes.Count(text, []byte("\n"))))
	return len(text), nil
}
