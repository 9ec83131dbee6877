// Command bank withdraws money from an account that several workers share.
//
// Two workers can believe at the same time that they hold the account's lock. A worker that is
// paused for longer than its lease continues when it wakes up. The guard of the balance rejects
// its write. bank.go shows the pattern; witness.go only reports the events.
//
//	bank open     --postgres URL --account alice --balance 100
//	bank withdraw --postgres URL --account alice --amount 30 --backend redis://127.0.0.1:6379
//
// Each stage of a withdrawal is one line of JSON on stdout. The exit code is 0 if the withdrawal
// was committed under a lock that was held until then. It is 2 for an invalid command line, and 1
// for all other errors.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/claim/lock"
	_ "github.com/interlock-dev/interlock/driver/etcd"  // etcd:// of the locks
	_ "github.com/interlock-dev/interlock/driver/redis" // redis:// of the locks
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// settings is the command line.
type settings struct {
	backend, postgres, account string
	amount, balance            int64
	inSteps, broken            bool
	as, history, pauseAt       string
}

func run(ctx context.Context, args []string) int {
	var s settings
	f := flags(&s)
	if len(args) == 0 {
		f.Usage()
		return 2
	}
	if err := f.Parse(args[1:]); err != nil {
		return 2
	}
	if err := s.validate(f.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bank:", err)
		return 2
	}
	var err error
	switch args[0] {
	case "open":
		err = runOpen(ctx, s)
	case "withdraw":
		err = runWithdraw(ctx, s)
	default:
		f.Usage()
		return 2
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bank:", err)
		return 1
	}
	return 0
}

func (s settings) validate(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case s.amount <= 0 || s.balance < 0:
		return errors.New("--amount must be above zero, and --balance not below")
	case s.pauseAt != "" && s.pauseAt != "read":
		return fmt.Errorf("--pause-at %q: the only stage to wait at is read", s.pauseAt)
	}
	return nil
}

func flags(s *settings) *flag.FlagSet {
	f := flag.NewFlagSet("bank open|withdraw", flag.ContinueOnError)
	f.StringVar(&s.postgres, "postgres", "", "`URL` of the database that holds the accounts; empty means that of the PG… variables")
	f.StringVar(&s.account, "account", "alice", "`name` of the account")
	f.Int64Var(&s.balance, "balance", 100, "open: the account's balance")
	f.Int64Var(&s.amount, "amount", 10, "withdraw: how much")
	f.StringVar(&s.backend, "backend", "etcd://127.0.0.1:7460?ttl=3s", "withdraw: `URL` of the lock system, etcd://… or redis://…; ttl is how long the lock lives without renewal")
	f.BoolVar(&s.inSteps, "in-steps", false, "withdraw: read and write in two transactions")
	f.BoolVar(&s.broken, "broken", false, "withdraw: in steps, and without the guard")
	f.StringVar(&s.as, "as", "", "withdraw: who asks, for people")
	f.StringVar(&s.history, "history", "", "withdraw: record what happens in this new `file`")
	f.StringVar(&s.pauseAt, "pause-at", "", "withdraw: wait at this `stage` for a line on stdin")
	return f
}

func runOpen(ctx context.Context, s settings) error {
	db, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return err
	}
	defer db.Close()
	return openAccount(ctx, db, s.account, s.balance)
}

func runWithdraw(ctx context.Context, s settings) (err error) {
	told, err := newWitness(s.as, s.history, s.pauseAt, os.Stdin, os.Stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, told.history.Close()) }()
	db, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return err
	}
	defer db.Close()
	locks, err := lock.Open(ctx, s.backend, &lock.Options{Identity: s.as, Hooks: told.acquiring(lockName(s.account))})
	if err != nil {
		return err
	}
	defer closeLocks(locks)
	b := &bank{locks: locks, db: db, broken: s.broken, told: told}
	if s.inSteps || s.broken {
		return b.withdrawInSteps(ctx, s.account, s.amount)
	}
	return b.withdraw(ctx, s.account, s.amount)
}

// closeLocks has its own time limit: the program is ending, and held claims expire by
// themselves.
func closeLocks(locks *lock.Fenced) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = locks.Close(ctx)
}
