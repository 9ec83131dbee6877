// Command transfer moves money between an account in PostgreSQL and one in MariaDB, in two ways. TCC
// holds it on one side and announces it on the other before both are confirmed (tcc.go). Two-phase
// commit uses PREPARE TRANSACTION and XA (twopc.go).
//
// It does not isolate: between two confirmations, or two commits, a reader can see the money
// on one side and not on the other. Two-phase commit keeps rows locked until it is decided,
// even if no process can decide. TCC keeps no lock, but both databases need its tables. With
// both, the money is on exactly one side in the end, whatever crashes.
//
//	transfer -by tcc -postgres postgres://me@127.0.0.1/test -mariadb 'me@tcp(127.0.0.1:3306)/test'
//	transfer -by 2pc …
//
// The latter needs max_prepared_transactions above 0 in PostgreSQL. Tables begin with transfer_. A
// second run finds its transfers and moves nothing; use another -run to move money again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	var s settings
	flag.StringVar(&s.by, "by", "tcc", "how: tcc or 2pc")
	flag.StringVar(&s.postgres, "postgres", "postgres://127.0.0.1/test", "`URL` of the northern bank")
	flag.StringVar(&s.mariadb, "mariadb", "root@tcp(127.0.0.1:3306)/test", "`DSN` of the southern bank")
	name := flag.String("run", "1", "the `name` of the run: transfers and accounts are its own")
	patience := flag.Duration("patience", time.Minute, "how long all of it may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *patience)
	defer cancel()
	if err := story(ctx, s, *name, os.Stdout); err != nil {
		log.Fatal("transfer: ", err)
	}
}

// story moves money there, some of it back, and more than the balance.
func story(ctx context.Context, s settings, name string, out io.Writer) error {
	b, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer b.close()
	ann, bob := "ann/"+name, "bob/"+name
	if err := b.openAccounts(ctx, account{north, ann, 100}, account{south, bob, 0}); err != nil {
		return err
	}
	for i, cents := range []int64{60, -20, 90} {
		t := Transfer{ID: fmt.Sprintf("transfer/%s/%d", name, i+1), North: ann, South: bob, Cents: cents}
		err := b.way.move(ctx, t)
		switch {
		case errors.Is(err, errRefused):
			fmt.Fprintf(out, "%+d: refused\n", cents)
			continue
		case err != nil:
			return err // it may be decided: a repetition is the same transfer
		}
		if err := b.way.settle(ctx, t.ID); err != nil {
			return err
		}
		fmt.Fprintf(out, "%+d: moved\n", cents)
	}
	in, err := b.way.balance(ctx, north, ann)
	inSouth, err2 := b.way.balance(ctx, south, bob)
	fmt.Fprintf(out, "ann has %d in the north, bob %d in the south\n", in, inSouth)
	return errors.Join(err, err2)
}
