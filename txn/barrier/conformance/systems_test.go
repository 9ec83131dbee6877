package conformance_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/barrier/conformance"
	"github.com/interlock-dev/interlock/txn/branch"
)

// everything plays all protocols to a participant on a real system.
func everything(t *testing.T, url string) {
	t.Helper()
	report := plays(t, conformance.Options{URL: url, Rounds: 2, Patience: testbed.Patience})
	t.Logf("%d plays, %d messages", report.Plays, report.Messages)
	if err := report.Err(); err != nil {
		t.Error(err)
	}
}

// hold is the output of the SQL participant's first, which its confirm and undo use.
type hold struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Amount  int64  `json:"amount"`
}

// moves are the changes of held and confirmed by an operation, for each unit.
var moves = map[branch.Operation][2]int64{
	branch.Do: {0, 1}, branch.Undo: {0, -1},
	branch.Try: {1, 0}, branch.Confirm: {-1, 1}, branch.Cancel: {-1, 0},
	branch.Prepare: {1, 0}, branch.Commit: {-1, 1}, branch.Rollback: {-1, 0},
}

// book moves an amount, unless the account would have more than its capacity.
func book(ctx context.Context, tx driver.SQL, account string, amount, capacity int64) error {
	query := `update account set held = held + ?, confirmed = confirmed + ? where name = ? and held + confirmed <= ?`
	if tx.Dialect() == driver.Postgres {
		query = `update account set held = held + $1, confirmed = confirmed + $2 where name = $3 and held + confirmed <= $4`
	}
	by := moves[branch.From(ctx).Operation]
	changed, err := tx.Exec(ctx, query, by[0]*amount, by[1]*amount, account, capacity)
	if err == nil && changed == 0 {
		err = branch.Fail(errNoRoom)
	}
	return err
}

// TestBarrierTablePasses: a participant on Postgres, and one on MariaDB.
func TestBarrierTablePasses(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		db := open(t)
		table := barrier.Table{Level: driver.ReadCommitted}
		db.Do(t, table.Create)
		db.Exec(t, `create table account (name varchar(250) primary key, held bigint not null, confirmed bigint not null)`)
		add, show := `insert ignore into account values (?, 0, 0)`, `select held, confirmed from account where name = ?`
		if db.Dialect == driver.Postgres {
			add, show = `insert into account values ($1, 0, 0) on conflict do nothing`, `select held, confirmed from account where name = $1`
		}
		participant := &barrier.Participant[driver.SQL, conformance.Input, hold]{DB: db, Table: table,
			Do: func(ctx context.Context, tx driver.SQL, in conformance.Input) (hold, error) {
				if _, err := tx.Exec(ctx, add, in.Account); err != nil {
					return hold{}, err
				}
				return hold{rand.Text(), in.Account, in.Amount}, book(ctx, tx, in.Account, in.Amount, in.Capacity-in.Amount)
			},
			Confirm: func(ctx context.Context, tx driver.SQL, h hold) error {
				return book(ctx, tx, h.Account, h.Amount, 1<<40)
			},
			Undo: func(ctx context.Context, tx driver.SQL, h *hold) error {
				return book(ctx, tx, h.Account, h.Amount, 1<<40)
			},
		}
		everything(t, served(t, participant.Call, func(ctx context.Context, account string) (e conformance.Effects, err error) {
			err = db.Try(ctx, func(ctx context.Context, tx driver.SQL) error {
				return tx.Query(ctx, show, []any{account}, func(scan func(...any) error) error { return scan(&e.Held, &e.Confirmed) })
			})
			return e, err
		}))
	}, databases.Pgx, databases.Maria)
}

func TestRedisBarrierPasses(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client, err := redis.Dial("redis://" + server.Addr())
	testbed.OK(t, err)
	t.Cleanup(client.Close)
	seats := redis.NewBarrier(client, "{seats}")
	key := func(account string) string { return "account:{seats}:" + account }
	participant := barrier.Keyed[redis.Body]{Barrier: seats, Business: func(ctx context.Context, input []byte) (redis.Body, error) {
		var in conformance.Input
		if err := json.Unmarshal(input, &in); err != nil {
			return redis.Body{}, err
		}
		by := moves[branch.From(ctx).Operation]
		return redis.Body{Text: `
			local has = redis.call('HMGET', KEYS[1], 'held', 'confirmed')
			local all = tonumber(has[1] or 0) + tonumber(has[2] or 0)
			if not RESULT and all + ARGV[1] > tonumber(ARGV[2]) then return refuse('there is no room') end
			redis.call('HINCRBY', KEYS[1], 'held', ARGV[3])
			redis.call('HINCRBY', KEYS[1], 'confirmed', ARGV[4])
			return cjson.encode({ hold = ARGV[5] })`,
			Keys: []string{key(in.Account)},
			Args: []string{text(in.Amount), text(in.Capacity), text(by[0] * in.Amount), text(by[1] * in.Amount), rand.Text()}}, nil
	}}
	everything(t, served(t, participant.Call, func(ctx context.Context, account string) (e conformance.Effects, err error) {
		has, err := client.Do(ctx, client.B().Hgetall().Key(key(account)).Build()).AsIntMap()
		if rueidis.IsRedisNil(err) {
			err = nil
		}
		return conformance.Effects{Held: has["held"], Confirmed: has["confirmed"]}, err
	}))
}

func text(n int64) string { return strconv.FormatInt(n, 10) }
