package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// accounts are in three stores.
var accounts = []string{"etcd/ann", "etcd/bob", "redis/cem", "redis/dina", "postgres/eve", "postgres/finn"}

const opening = 100 // on each account

// bank is one process with its connections.
type bank struct {
	db    *percolator.DB
	etcd  *clientv3.Client
	redis rueidis.Client
	pool  *pgxpool.Pool
}

func open(ctx context.Context, s settings) (b *bank, err error) {
	b = &bank{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{s.etcd}}); err != nil {
		return nil, err
	}
	if b.redis, err = redis.Dial("redis://" + s.redis); err != nil {
		return nil, err
	}
	if b.pool, err = pgxpool.New(ctx, s.postgres); err != nil {
		return nil, err
	}
	store := etcd.NewKeyValues(b.etcd, "percolator/")
	oracle, err := timestamp.NewOracle(store, "oracle", nil)
	if err != nil {
		return nil, err
	}
	b.db, err = percolator.Open(ctx, oracle, percolator.Stores{
		"etcd/":     store,
		"redis/":    redis.NewKeyValues(b.redis, "percolator/"),
		"postgres/": postgres.NewKeyValues(b.pool, "public.percolator_example"),
	}, &percolator.Options{TTL: lockTTL})
	return b, err
}

func (b *bank) close() {
	if b.db != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = b.db.Close(ctx) // readers complete what is left
	}
	if b.pool != nil {
		b.pool.Close()
	}
	if b.redis != nil {
		b.redis.Close()
	}
	if b.etcd != nil {
		_ = b.etcd.Close()
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
		there, errTo := balance(ctx, tx, to)
		if err := errors.Join(errFrom, errTo); err != nil {
			return err
		}
		n := min(n, has)
		return errors.Join(tx.Put(from, []byte(strconv.Itoa(has-n))), tx.Put(to, []byte(strconv.Itoa(there+n))))
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
