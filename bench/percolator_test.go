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

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/percolator/percolatortest"
	"github.com/interlock-dev/interlock/txn/timestamp"
	"github.com/interlock-dev/interlock/txn/twopc"
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
	// open returns accounts for two-phase commit, and for sagas and TCC; nil if the store has no
	// journal.
	open func(tb testing.TB, accounts int) (ledger, bank)
}

// ledger is two participants of two-phase commit, with accounts.
type ledger struct {
	defined  []twopc.Defined
	transfer func(ctx context.Context, t *twopc.T, from, to int) error
	sums     balances
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
				goals = append(goals, compare.Goal{Metric: compare.Rate, Side: "one store", Against: []string{"commits"}})
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
	one, other := store.keys("north"), store.keys("south")
	sides := []compare.Side{
		percolated(tb, "percolator", percolator.Stores{"n/": one, "s/": other}, one, clients, accounts),
		percolated(tb, "one store", percolator.Stores{"": store.keys("both")}, one, clients, accounts),
	}
	if store.open != nil {
		l, b := store.open(tb, accounts)
		sides = append(append(sides, committed(tb, l, b.url, clients, accounts)), b.sides(tb, clients, accounts)...)
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

// committed runs the transfers by two-phase commit, and repeats them after a conflict.
func committed(tb testing.TB, l ledger, url string, clients, accounts int) compare.Side {
	var engine *twopc.Engine
	start(tb, openRuntime(tb, url, ownJournal()), func(c *coordinator.Coordinator) (err error) {
		engine, err = twopc.New(c, nil, l.defined...)
		return err
	})
	move := func(ctx context.Context, from, to int) error {
		for n := 1; ; n++ {
			err := engine.Run(ctx, fmt.Sprintf("t%d", fresh.Add(1)), func(ctx context.Context, t *twopc.T) error { return l.transfer(ctx, t, from, to) })
			if interlock.Kind(err) != interlock.Retryable || !conflicts.Wait(ctx, n) {
				return err
			}
		}
	}
	return transfers("two-phase commit", clients, accounts, move, l.sums)
}

// participants returns a ledger of two participants, of which the first is called first.
func participants[B any](north, south driver.Preparer[B], sums balances, add func(ctx context.Context, b B, side string, account int, n int64) error) ledger {
	atNorth, atSouth := twopc.Define("north", north), twopc.Define("south", south)
	return ledger{defined: []twopc.Defined{atNorth, atSouth}, sums: sums, transfer: func(ctx context.Context, t *twopc.T, from, to int) error {
		n, err := atNorth.Join(ctx, t)
		if err == nil {
			err = add(ctx, n, "north", from, -1)
		}
		if err != nil {
			return err
		}
		s, err := atSouth.Join(ctx, t)
		if err != nil {
			return err
		}
		return add(ctx, s, "south", to, 1)
	}}
}

func postgresBank(tb testing.TB, server *testbed.Server) bankStore {
	pool := poolOf(tb, server, bankConnections)
	add := func(ctx context.Context, tx pgx.Tx, table, side string, account int, n int64) error {
		_, err := tx.Exec(ctx, `update `+table+` set balance = balance + $1 where side = $2 and id = $3`, n, side, account)
		return err
	}
	return bankStore{
		keys:   func(name string) driver.KeyValues { return postgres.NewKeyValues(pool, "public."+name) },
		commit: postgresCommit(tb, poolOf(tb, server, bankConnections)),
		open: func(tb testing.TB, accounts int) (ledger, bank) {
			table, sums := sqlAccounts(tb, postgres.Pool(pool), accounts)
			side := func(name string) driver.Preparer[pgx.Tx] { // a branch that waits for a row keeps its connection
				p, err := postgres.OpenParticipant(tb.Context(), poolOf(tb, server, 2*bankConnections), table+name, nil)
				ok(tb, err)
				return p
			}
			l := participants(side("n"), side("s"), sums, func(ctx context.Context, tx pgx.Tx, side string, account int, n int64) error {
				return add(ctx, tx, table, side, account, n)
			})
			return l, sqlBank(tb, withPool(server), postgres.Pool(pool), accounts, add)
		},
	}
}

func mariadbBank(tb testing.TB, server *testbed.Server) bankStore {
	db := mariadbPool(tb, server, bankConnections)
	update := func(table string) string {
		return `update ` + table + ` set balance = balance + ? where side = ? and id = ?`
	}
	return bankStore{
		keys:   func(name string) driver.KeyValues { return mysql.NewKeyValues(db, name) },
		commit: mariadbCommit(tb, mariadbPool(tb, server, bankConnections)),
		open: func(tb testing.TB, accounts int) (ledger, bank) {
			table, sums := sqlAccounts(tb, mysql.DB(db), accounts)
			sessions := mariadbPool(tb, server, 4*bankConnections) // a prepared branch keeps its session
			side := func(name string) driver.Preparer[*sql.Conn] {
				p, err := mysql.OpenParticipant(tb.Context(), sessions, table+name, nil)
				ok(tb, err)
				return p
			}
			l := participants(side("n"), side("s"), sums, func(ctx context.Context, c *sql.Conn, side string, account int, n int64) error {
				_, err := c.ExecContext(ctx, update(table), n, side, account)
				return err
			})
			return l, sqlBank(tb, "mysql://root@"+server.Addr()+"/test", mysql.DB(db), accounts,
				func(ctx context.Context, tx *sql.Tx, table, side string, account int, n int64) error {
					_, err := tx.ExecContext(ctx, update(table), n, side, account)
					return err
				})
		},
	}
}

func etcdBank(tb testing.TB, server *testbed.Server) bankStore {
	client, other := dialEtcd(tb, server), dialEtcd(tb, server)
	return bankStore{
		keys:   func(name string) driver.KeyValues { return etcd.NewKeyValues(client, name+"/") },
		commit: etcdCommit(other),
		open: func(tb testing.TB, accounts int) (ledger, bank) {
			prefix := fmt.Sprintf("bank%d", fresh.Add(1))
			north, south := etcd.NewShard(other, prefix+"n/"), etcd.NewShard(other, prefix+"s/")
			name := func(account int) string { return fmt.Sprint("a", account) }
			sums := func(ctx context.Context) (n, s int64, err error) {
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
			l := participants(driver.Preparer[*etcd.ShardBranch](north), driver.Preparer[*etcd.ShardBranch](south), sums,
				func(ctx context.Context, b *etcd.ShardBranch, _ string, account int, n int64) error {
					text, err := b.Get(ctx, name(account))
					if err != nil {
						return err
					}
					had, _ := strconv.ParseInt(string(text), 10, 64)
					return b.Put(ctx, name(account), strconv.AppendInt(nil, had+n, 10))
				})
			return l, keyedBank("etcd://"+server.Addr(), accounts, etcd.NewKeyValues(other, prefix+"saga/"), etcd.NewKeyValues(other, prefix+"tcc/"))
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
