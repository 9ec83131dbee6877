package bench

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/percolator/percolatortest"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

const bankConnections = 64 // of each pool

// conflicts are the pauses before a transfer that conflicts runs again.
var conflicts = backoff.Policy{First: 5 * time.Millisecond, Max: time.Second}

// bankStores have accounts for Percolator and, except for Redis, for the other protocols. All
// have two participants on one server, each with half of the accounts.
var bankStores = []struct {
	name  string
	start func(tb testing.TB, extra ...string) *testbed.Server
	extra []string
	open  func(tb testing.TB, server *testbed.Server) bankStore
}{
	{"postgres", startPostgres, nil, postgresBank},
	{"mariadb", startMariaDB, nil, mariadbBank},
	{"etcd", testbed.Etcd, nil, etcdBank},
	{"redis", testbed.Redis, []string{"--appendonly", "yes", "--appendfsync", "always"}, redisBank},
}

// bankStore is what one server supports.
type bankStore struct {
	keys   func(name string) driver.KeyValues
	commit commit
	open   func(tb testing.TB, accounts int) bank // nil if the store has no journal
}

func percolatorCases(tb testing.TB) (cases []benchmark) {
	for _, store := range bankStores {
		server := lazily(tb, store.start, store.extra...)
		opened := sync.OnceValue(func() bankStore { return store.open(tb, server()) })
		for _, clients := range []int{1, 16, 128} {
			for _, accounts := range []int{1000, 32, 2} {
				if store.name == "redis" && clients != 16 && accounts != 32 {
					continue // nothing to compare with
				}
				goals := []compare.Goal{faster("commits", 0), {Metric: compare.P99}}
				if store.name != "redis" {
					goals = append(goals, faster("two-phase commit", 0), compare.Goal{Metric: compare.P99, Against: []string{"two-phase commit"}, AtMost: true},
						faster("TCC", 0), faster("saga", 0))
				}
				goals = append(goals, compare.Goal{Metric: compare.Rate, Side: "one store", Against: []string{"commits"}},
					compare.Goal{Metric: compare.Rate, Side: "one phase", Against: []string{"one store"}},
					compare.Goal{Metric: compare.Rate, Side: "one phase", Against: []string{"commits"}})
				cases = append(cases, benchmark{
					Case: compare.Case{Name: fmt.Sprintf("percolator/%s/%d/%d", store.name, clients, accounts), Goals: goals, Rounds: 2,
						Window: time.Duration(clients) * 8 * time.Millisecond, // of 128 clients, a transfer takes half a second
						Note:   fmt.Sprintf("each write is synced to disk; %d clients move money from one of %d accounts to one of %d others", clients, accounts, accounts)},
					smoke: clients == 1 && accounts == 32,
					open:  func(tb testing.TB) []compare.Side { return bankSides(tb, opened(), clients, accounts) },
				})
			}
		}
	}
	return cases
}

func bankSides(tb testing.TB, store bankStore, clients, accounts int) []compare.Side {
	one, other, alone := store.keys("north"), store.keys("south"), store.keys("alone")
	sides := []compare.Side{
		percolated(tb, "percolator", percolator.Stores{"n/": one, "s/": other}, one, clients, accounts),
		percolated(tb, "one store", percolator.Stores{"": store.keys("both")}, one, clients, accounts),
		percolated(tb, "one phase", percolator.Stores{"": alone}, alone, clients, accounts), // the oracle is there, too
	}
	if store.open != nil {
		sides = append(sides, store.open(tb, accounts).sides(tb, clients, accounts)...)
	}
	return append(sides, commits(clients, store.commit))
}

// transfers has clients move money. It cancels what has not ended half a second after the window.
// It checks that no money is lost, and that each transfer has one effect.
func transfers(name string, clients, accounts int, move func(ctx context.Context, from, to int) error, sums balances) compare.Side {
	var started, succeeded atomic.Int64 // in all rounds
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		bounded, cancel := context.WithTimeout(ctx, window/4+window+500*time.Millisecond)
		defer cancel()
		s, err := compare.Drive(bounded, clients, window, func(ctx context.Context, _ int) error {
			started.Add(1)
			err := move(ctx, rand.IntN(accounts), rand.IntN(accounts))
			if err == nil {
				succeeded.Add(1)
			}
			return err
		})
		for n := 1; err == nil; n++ {
			var north, south int64
			north, south, err = sums(ctx)
			if north+south == 0 && south >= succeeded.Load() && south <= started.Load() {
				break
			}
			if n == 20 || !conflicts.Wait(ctx, n) { // the last ones may be in progress
				s.Violations = append(s.Violations, fmt.Sprintf("%d left one side and %d arrived at the other, of %d transfers of which %d succeeded",
					-north, south, started.Load(), succeeded.Load()))
				break
			}
		}
		return s, err
	}}
}

func percolated(tb testing.TB, name string, stores percolator.Stores, clock driver.KeyValues, clients, accounts int) compare.Side {
	oracle, err := timestamp.NewOracle(clock, "oracle", nil)
	ok(tb, err)
	db, err := percolator.Open(tb.Context(), oracle, stores, nil)
	ok(tb, err)
	closeAfter(tb, db.Close)
	for only := stores[""]; only == clock && !oracle.Commits(clock); time.Sleep(100 * time.Millisecond) {
		_, err := oracle.Next(tb.Context())
		ok(tb, err)
	}
	half := fresh.Add(1) // separate accounts
	move := func(ctx context.Context, from, to int) error {
		return db.Update(ctx, func(tx *percolator.Tx) error {
			return errors.Join(percolatortest.Add(ctx, tx, fmt.Sprintf("n/%d/%d", half, from), -1), percolatortest.Add(ctx, tx, fmt.Sprintf("s/%d/%d", half, to), 1))
		})
	}
	return transfers(name, clients, accounts, move, func(ctx context.Context) (north, south int64, err error) {
		err = db.View(ctx, func(tx *percolator.Tx) error {
			north, south = 0, 0
			for side, sum := range map[string]*int64{"n": &north, "s": &south} {
				pairs, err := tx.Scan(ctx, fmt.Sprintf("%s/%d/", side, half), fmt.Sprintf("%s/%d0", side, half), accounts)
				if err != nil {
					return err
				}
				for _, p := range pairs {
					*sum += int64(binary.BigEndian.Uint64(p.Value))
				}
			}
			return nil
		})
		if err == nil && north+south != 0 {
			err = fmt.Errorf("a snapshot has %d and %d", north, south)
		}
		return north, south, err
	})
}

func postgresBank(tb testing.TB, server *testbed.Server) bankStore {
	pool := poolOf(tb, server, bankConnections)
	exec := func(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}
	return bankStore{
		keys:   func(name string) driver.KeyValues { return postgres.NewKeyValues(pool, "public."+name) },
		commit: postgresCommit(tb, poolOf(tb, server, bankConnections)),
		open: func(tb testing.TB, accounts int) bank {
			open := func(name string) (driver.Preparer[pgx.Tx], error) { // a branch that waits for a row keeps its connection
				return postgres.OpenParticipant(tb.Context(), poolOf(tb, server, 2*bankConnections), name, nil)
			}
			return sqlBank(tb, withPool(server), postgres.Pool(pool), accounts, `update %s set balance = balance + $1 where side = $2 and id = $3`, open, exec, exec)
		},
	}
}

func mariadbBank(tb testing.TB, server *testbed.Server) bankStore {
	db := mariadbPool(tb, server, bankConnections)
	return bankStore{
		keys:   func(name string) driver.KeyValues { return mysql.NewKeyValues(db, name) },
		commit: mariadbCommit(tb, mariadbPool(tb, server, bankConnections)),
		open: func(tb testing.TB, accounts int) bank {
			sessions := mariadbPool(tb, server, 4*bankConnections) // a prepared branch keeps its session
			open := func(name string) (driver.Preparer[*sql.Conn], error) {
				return mysql.OpenParticipant(tb.Context(), sessions, name, nil)
			}
			return sqlBank(tb, "mysql://root@"+server.Addr()+"/test", mysql.DB(db), accounts, `update %s set balance = balance + ? where side = ? and id = ?`,
				open, execute[*sql.Conn], execute[*sql.Tx])
		},
	}
}

func execute[C interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}](ctx context.Context, c C, query string, args ...any) error {
	_, err := c.ExecContext(ctx, query, args...)
	return err
}

func etcdBank(tb testing.TB, server *testbed.Server) bankStore {
	client, other := dialEtcd(tb, server), dialEtcd(tb, server)
	return bankStore{
		keys:   func(name string) driver.KeyValues { return etcd.NewKeyValues(client, name+"/") },
		commit: etcdCommit(other),
		open: func(tb testing.TB, accounts int) bank {
			prefix := fmt.Sprintf("bank%d", fresh.Add(1))
			north, south := etcd.NewShard(other, prefix+"n/"), etcd.NewShard(other, prefix+"s/")
			name := func(account int) string { return fmt.Sprint("a", account) }
			b := keyedBank("etcd://"+server.Addr(), accounts, etcd.NewKeyValues(other, prefix+"saga/"), etcd.NewKeyValues(other, prefix+"tcc/"))
			b.committed = func(ctx context.Context) (n, s int64, err error) {
				for sum, shard := range map[*int64]*etcd.Shard{&n: north, &s: south} {
					for account := 0; account < accounts && err == nil; account++ {
						var v etcd.ShardValue
						v, err = shard.Value(ctx, name(account))
						has, _ := strconv.ParseInt(string(v.Data), 10, 64)
						*sum += has
					}
				}
				return n, s, err
			}
			participate(&b, driver.Preparer[*etcd.ShardBranch](north), south,
				func(ctx context.Context, b *etcd.ShardBranch, _ string, account int, n int64) error {
					text, err := b.Get(ctx, name(account))
					if err != nil {
						return err
					}
					had, _ := strconv.ParseInt(string(text), 10, 64)
					return b.Put(ctx, name(account), strconv.AppendInt(nil, had+n, 10))
				})
			return b
		},
	}
}

func redisBank(tb testing.TB, server *testbed.Server) bankStore {
	client := dialRedis(tb, server)
	return bankStore{
		keys: func(name string) driver.KeyValues { return redis.NewKeyValues(client, name) },
		commit: func(ctx context.Context) error {
			return client.Do(ctx, client.B().Set().Key(fmt.Sprint("one/", fresh.Add(1))).Value(filler).Build()).Error()
		},
	}
}
