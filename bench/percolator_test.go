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
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/percolator/percolatortest"
	"github.com/interlock-dev/interlock/txn/timestamp"
	"github.com/interlock-dev/interlock/txn/twopc"
)

const bankConnections = 64 // of each pool

// conflicts are the pauses before a transfer that conflicts runs again.
var conflicts = backoff.Policy{First: 5 * time.Millisecond, Max: time.Second}

// bankStores have accounts for Percolator and, except for Redis, for two-phase commit. Both
// have two participants on one server, each with half of the accounts.
var bankStores = []struct {
	name  string
	start func(tb testing.TB) *testbed.Server
	open  func(tb testing.TB, server *testbed.Server) bankStore
}{
	{"postgres", func(tb testing.TB) *testbed.Server {
		return testbed.Postgres(tb, "-c", "fsync=on", "-c", "max_connections=900", "-c", "max_prepared_transactions=300")
	}, postgresBank},
	{"mariadb", func(tb testing.TB) *testbed.Server {
		return testbed.MariaDB(tb, "--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=1", "--max-connections=900")
	}, mariadbBank},
	{"etcd", func(tb testing.TB) *testbed.Server { return testbed.Etcd(tb) }, etcdBank},
	{"redis", func(tb testing.TB) *testbed.Server {
		return testbed.Redis(tb, "--appendonly", "yes", "--appendfsync", "always")
	}, redisBank},
}

// bankStore is what one server supports.
type bankStore struct {
	keys   func(name string) driver.KeyValues
	commit func(ctx context.Context) error
	// ledger returns accounts for two-phase commit; nil if the store cannot prepare.
	ledger func(tb testing.TB, accounts int) ledger
}

// ledger is two participants of two-phase commit, with accounts.
type ledger struct {
	url      string // of the journal
	defined  []twopc.Defined
	transfer func(ctx context.Context, t *twopc.T, from, to int) error
	sum      func(ctx context.Context) (int64, error) // 0
	// others returns the same transfers by sagas and TCC; nil if the store has no transactions.
	others func(tb testing.TB, clients, accounts int) []compare.Side
}

func percolatorCases(tb testing.TB) (cases []benchmark) {
	for _, store := range bankStores {
		server := sync.OnceValue(func() *testbed.Server { return store.start(tb) })
		opened := sync.OnceValue(func() bankStore { return store.open(tb, server()) })
		for _, clients := range []int{1, 16, 128} {
			for _, accounts := range []int{1000, 32, 2} {
				if store.name == "redis" && clients != 16 && accounts != 32 {
					continue // nothing to compare with
				}
				goals := []compare.Goal{{Metric: compare.Rate, Against: []string{"commits"}}, {Metric: compare.P99}}
				if store.name != "redis" {
					goals = append(goals, compare.Goal{Metric: compare.Rate, Against: []string{"two-phase commit"}},
						compare.Goal{Metric: compare.P99, Against: []string{"two-phase commit"}, AtMost: true})
				}
				if store.name == "postgres" || store.name == "mariadb" {
					goals = append(goals, compare.Goal{Metric: compare.Rate, Against: []string{"TCC"}}, compare.Goal{Metric: compare.Rate, Against: []string{"saga"}})
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
	if store.ledger != nil {
		l := store.ledger(tb, accounts)
		sides = append(sides, committed(tb, l, clients, accounts))
		if l.others != nil {
			sides = append(sides, l.others(tb, clients, accounts)...)
		}
	}
	return append(sides, commits(clients, store.commit))
}

// transfers has clients move money, and checks that none is lost. It cancels what has not ended half a
// second after the window.
func transfers(name string, clients, accounts int, move func(ctx context.Context, from, to int) error, sum func(ctx context.Context) (int64, error)) compare.Side {
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		bounded, cancel := context.WithTimeout(ctx, window/4+window+500*time.Millisecond)
		defer cancel()
		s, err := compare.Drive(bounded, clients, window, func(ctx context.Context, _ int) (time.Duration, error) {
			began := time.Now()
			err := move(ctx, rand.IntN(accounts), rand.IntN(accounts))
			return time.Since(began), err
		})
		if err != nil {
			return s, err
		}
		left, err := sum(ctx)
		for n := 1; err == nil && left != 0 && n < 20 && conflicts.Wait(ctx, n); n++ { // the last ones may be in progress
			left, err = sum(ctx)
		}
		if left != 0 {
			s.Violations = append(s.Violations, fmt.Sprintf("the accounts have %d together, and began with 0", left))
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
	return transfers(name, clients, accounts, move, func(ctx context.Context) (sum int64, err error) {
		err = db.View(ctx, func(tx *percolator.Tx) error {
			sum = 0
			for _, side := range []string{"n", "s"} {
				pairs, err := tx.Scan(ctx, fmt.Sprintf("%s/%d/", side, half), fmt.Sprintf("%s/%d0", side, half), accounts)
				if err != nil {
					return err
				}
				for _, p := range pairs {
					sum += int64(binary.BigEndian.Uint64(p.Value))
				}
			}
			return nil
		})
		if err == nil && sum != 0 {
			err = fmt.Errorf("a snapshot has a sum of %d", sum)
		}
		return sum, err
	})
}

// committed runs the transfers by two-phase commit, and repeats them after a conflict.
func committed(tb testing.TB, l ledger, clients, accounts int) compare.Side {
	rt, err := txn.Open(tb.Context(), l.url, &txn.Options{Journal: fmt.Sprint("bank", fresh.Add(1))})
	ok(tb, err)
	closeAfter(tb, rt.Close)
	engine, err := twopc.New(rt.Coordinator(), nil, l.defined...)
	ok(tb, err)
	ok(tb, rt.Start(tb.Context()))
	move := func(ctx context.Context, from, to int) error {
		for n := 1; ; n++ {
			err := engine.Run(ctx, fmt.Sprintf("t%d", fresh.Add(1)), func(ctx context.Context, t *twopc.T) error { return l.transfer(ctx, t, from, to) })
			if interlock.Kind(err) != interlock.Retryable || !conflicts.Wait(ctx, n) {
				return err
			}
		}
	}
	return transfers("two-phase commit", clients, accounts, move, l.sum)
}

// participants returns a ledger of two participants, of which the first is called first.
func participants[B any](north, south driver.Preparer[B], add func(ctx context.Context, b B, side string, account int, n int64) error) ledger {
	atNorth, atSouth := twopc.Define("north", north), twopc.Define("south", south)
	return ledger{defined: []twopc.Defined{atNorth, atSouth}, transfer: func(ctx context.Context, t *twopc.T, from, to int) error {
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
	return bankStore{
		keys:   func(name string) driver.KeyValues { return postgres.NewKeyValues(pool, "public."+name) },
		commit: postgresCommit(tb, poolOf(tb, server, bankConnections)),
		ledger: func(tb testing.TB, accounts int) ledger {
			table := fmt.Sprint("account", fresh.Add(1))
			_, err := pool.Exec(tb.Context(), fmt.Sprintf(`create table %s (side text, id int, balance bigint not null, primary key (side, id));
				insert into %[1]s select side, id, 0 from unnest(array['north', 'south']) side, generate_series(0, %d) id`, table, accounts))
			ok(tb, err)
			// A branch that waits for a row keeps its connection.
			north, err := postgres.OpenParticipant(tb.Context(), poolOf(tb, server, 2*bankConnections), table+"n", nil)
			ok(tb, err)
			south, err := postgres.OpenParticipant(tb.Context(), poolOf(tb, server, 2*bankConnections), table+"s", nil)
			ok(tb, err)
			add := func(ctx context.Context, tx pgx.Tx, side string, account int, n int64) error {
				_, err := tx.Exec(ctx, `update `+table+` set balance = balance + $1 where side = $2 and id = $3`, n, side, account)
				return err
			}
			l := participants(driver.Preparer[pgx.Tx](north), driver.Preparer[pgx.Tx](south), add)
			l.url = withPool(server)
			l.sum = func(ctx context.Context) (sum int64, err error) {
				err = pool.QueryRow(ctx, `select sum(balance)::bigint from `+table).Scan(&sum)
				return sum, err
			}
			l.others = rows[pgx.Tx]{url: l.url, db: postgres.Pool(pool), add: add, sum: l.sum}.sides
			return l
		},
	}
}

func mariadbBank(tb testing.TB, server *testbed.Server) bankStore {
	db := mariadbPool(tb, server, bankConnections)
	return bankStore{
		keys:   func(name string) driver.KeyValues { return mysql.NewKeyValues(db, name) },
		commit: mariadbCommit(tb, mariadbPool(tb, server, bankConnections)),
		ledger: func(tb testing.TB, accounts int) ledger {
			table := fmt.Sprint("account", fresh.Add(1))
			for _, query := range []string{
				`create table ` + table + ` (side varchar(5), id int, balance bigint not null, primary key (side, id)) engine = InnoDB`,
				fmt.Sprintf(`insert into %s select 'north', seq, 0 from seq_0_to_%d union all select 'south', seq, 0 from seq_0_to_%[2]d`, table, accounts),
			} {
				_, err := db.ExecContext(tb.Context(), query)
				ok(tb, err)
			}
			sessions := mariadbPool(tb, server, 4*bankConnections) // a prepared branch keeps its session
			north, err := mysql.OpenParticipant(tb.Context(), sessions, table+"n", nil)
			ok(tb, err)
			south, err := mysql.OpenParticipant(tb.Context(), sessions, table+"s", nil)
			ok(tb, err)
			update := `update ` + table + ` set balance = balance + ? where side = ? and id = ?`
			l := participants(driver.Preparer[*sql.Conn](north), driver.Preparer[*sql.Conn](south), func(ctx context.Context, c *sql.Conn, side string, account int, n int64) error {
				_, err := c.ExecContext(ctx, update, n, side, account)
				return err
			})
			l.url = "mysql://root@" + server.Addr() + "/test"
			l.sum = func(ctx context.Context) (sum int64, err error) {
				err = db.QueryRowContext(ctx, `select sum(balance) from `+table).Scan(&sum)
				return sum, err
			}
			l.others = rows[*sql.Tx]{url: l.url, db: mysql.DB(db), sum: l.sum, add: func(ctx context.Context, tx *sql.Tx, side string, account int, n int64) error {
				_, err := tx.ExecContext(ctx, update, n, side, account)
				return err
			}}.sides
			return l
		},
	}
}

func etcdBank(tb testing.TB, server *testbed.Server) bankStore {
	client, other := dialEtcd(tb, server), dialEtcd(tb, server)
	return bankStore{
		keys: func(name string) driver.KeyValues { return etcd.NewKeyValues(client, name+"/") },
		commit: func(ctx context.Context) error {
			_, err := other.Put(ctx, fmt.Sprintf("one/%d", fresh.Add(1)), filler)
			return err
		},
		ledger: func(tb testing.TB, accounts int) ledger {
			prefix := fmt.Sprintf("shard%d", fresh.Add(1))
			north, south := etcd.NewShard(other, prefix+"n/"), etcd.NewShard(other, prefix+"s/")
			name := func(account int) string { return fmt.Sprint("a", account) }
			l := participants(driver.Preparer[*etcd.ShardBranch](north), driver.Preparer[*etcd.ShardBranch](south),
				func(ctx context.Context, b *etcd.ShardBranch, _ string, account int, n int64) error {
					text, err := b.Get(ctx, name(account))
					if err != nil {
						return err
					}
					had, _ := strconv.ParseInt(string(text), 10, 64)
					return b.Put(ctx, name(account), strconv.AppendInt(nil, had+n, 10))
				})
			l.url = "etcd://" + server.Addr()
			l.sum = func(ctx context.Context) (sum int64, err error) {
				for account := range accounts {
					for _, shard := range []*etcd.Shard{north, south} {
						v, err := shard.Value(ctx, name(account))
						if err != nil {
							return 0, err
						}
						has, _ := strconv.ParseInt(string(v.Data), 10, 64)
						sum += has
					}
				}
				return sum, nil
			}
			return l
		},
	}
}

func redisBank(tb testing.TB, server *testbed.Server) bankStore {
	client, err := redis.Dial("redis://" + server.Addr())
	ok(tb, err)
	tb.Cleanup(client.Close)
	return bankStore{
		keys: func(name string) driver.KeyValues { return redis.NewKeyValues(client, name) },
		commit: func(ctx context.Context) error {
			return client.Do(ctx, client.B().Set().Key(fmt.Sprint("one/", fresh.Add(1))).Value(filler).Build()).Error()
		},
	}
}
