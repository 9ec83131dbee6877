package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/etcd"     // etcd://
	_ "github.com/interlock-dev/interlock/driver/postgres" // postgres://
	_ "github.com/interlock-dev/interlock/driver/redis"    // redis://
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// accounts are in three stores.
var accounts = []string{"etcd/ann", "etcd/bob", "redis/cem", "redis/dina", "postgres/eve", "postgres/finn"}

const opening = 100 // on each account

// bank is one process with its connections.
type bank struct {
	db      *percolator.DB
	systems []*backend.Backend
}

func open(ctx context.Context, s settings) (_ *bank, err error) {
	b := &bank{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	stores := percolator.Stores{}
	for prefix, url := range map[string]string{"etcd/": s.etcd, "redis/": s.redis, "postgres/": s.postgres} {
		system, err := backend.Open(ctx, url)
		if err != nil {
			return nil, err
		}
		b.systems = append(b.systems, system)
		stores[prefix], _ = system.KeyValues("percolator/") // each of the three has them
	}
	oracle, err := timestamp.NewOracle(stores["etcd/"], "oracle", nil)
	if err != nil {
		return nil, err
	}
	b.db, err = percolator.Open(ctx, oracle, stores, &percolator.Options{TTL: lockTTL})
	return b, err
}

func (b *bank) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if b.db != nil {
		_ = b.db.Close(ctx) // readers complete what is left
	}
	for _, system := range b.systems {
		_ = system.Close(ctx)
	}
}

// deposit opens all accounts, unless an earlier run did.
func (b *bank) deposit(ctx context.Context) error {
	return b.db.Update(ctx, func(tx *percolator.Tx) error {
		if _, found, err := tx.Get(ctx, accounts[0]); err != nil || found {
			return err
		}
		var errs []error
		for _, account := range accounts {
			errs = append(errs, tx.Put(account, []byte(strconv.Itoa(opening))))
		}
		return errors.Join(errs...)
	})
}

func balance(ctx context.Context, tx *percolator.Tx, account string) (int, error) {
	text, found, err := tx.Get(ctx, account)
	if err == nil && !found {
		err = fmt.Errorf("there is no account %s", account)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// transfer moves up to n between two accounts in any stores.
func (b *bank) transfer(ctx context.Context, from, to string, n int) error {
	return b.db.Update(ctx, func(tx *percolator.Tx) error {
		has, errFrom := balance(ctx, tx, from)
		had, errTo := balance(ctx, tx, to)
		if err := errors.Join(errFrom, errTo); err != nil {
			return err
		}
		n := min(n, has)
		return errors.Join(tx.Put(from, []byte(strconv.Itoa(has-n))), tx.Put(to, []byte(strconv.Itoa(had+n))))
	})
}

// audit sums the money in one snapshot of all stores.
func (b *bank) audit(ctx context.Context) (sum int, err error) {
	err = b.db.View(ctx, func(tx *percolator.Tx) error {
		sum = 0
		for _, account := range accounts {
			n, err := balance(ctx, tx, account)
			if err != nil {
				return err
			}
			sum += n
		}
		return nil
	})
	return sum, err
}

// tell transfers money until ctx ends or the process is killed. It writes a line for each
// acknowledged transfer.
func (b *bank) tell(ctx context.Context, out io.Writer) {
	for ctx.Err() == nil {
		i := rand.IntN(len(accounts))
		j := (i + 1 + rand.IntN(len(accounts)-1)) % len(accounts)
		bounded, cancel := context.WithTimeout(ctx, patience)
		if b.transfer(bounded, accounts[i], accounts[j], 1+rand.IntN(20)) == nil { // a store may be down
			fmt.Fprintln(out, "moved")
		}
		cancel()
	}
}
