package main

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/history"
)

// A partition moves from one consumer to another, as in every deploy. The former one
// is still handling an event and does not know that. The new one receives the same
// event and later ones. Then the former one writes, and the record has an old state
// again. A queue in each process does not help: there are two.
//
// The remedy is a sequence number per key, raised in the transaction that writes: an
// event that any process has handled is a duplicate. A fencing token under the
// partition's claim (guard/fence) does the same for events without numbers.
var twoOwners = race{
	name:    "two-owners",
	symptom: "after a deploy or a rebalance some records are at an earlier state",
	remedy:  "guard/once: Tx of messages with a Seq, or guard/fence",
	system:  onPostgres,
	prepare: func(ctx context.Context, s systems) error {
		err := s.create(ctx, `create table if not exists race_profile (customer text primary key, city text not null, event bigint not null)`)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) error { return profiles.Create(ctx, postgres.Tx(tx)) })
	},
	broken: rebalancing(moveTo),
	fixed:  rebalancing(moveInSequence),
	judge:  history.CheckVersions,
	rule:   history.RuleVersion,
}

var profiles = once.Inbox{Name: "race_profile_inbox", Consumer: "profiles"}

// move is one event of a customer; seq counts them.
type move struct {
	customer string
	seq      int64
}

// rebalancing lets the former owner write when the new one is ahead of it.
func rebalancing(handle func(ctx context.Context, s *scene, m move) (done bool, err error)) twin {
	return func(ctx context.Context, s *scene) error {
		customer, last := s.name("customer"), 2+s.rand.Int64N(4)
		late := 1 + s.rand.Int64N(last-1)
		former := actor{"former", func(ctx context.Context, pause func(string)) error {
			pause("event " + strconv.FormatInt(late, 10) + " belongs to this worker")
			return s.moved(ctx, "former", move{customer, late}, handle)
		}}
		owner := actor{"owner", func(ctx context.Context, pause func(string)) error {
			for seq := int64(1); seq <= last; seq++ {
				if err := s.moved(ctx, "owner", move{customer, seq}, handle); err != nil {
					return err
				}
				pause("")
			}
			return nil
		}}
		order := []string{"former"}
		for range late + 1 + s.rand.Int64N(last-late) {
			order = append(order, "owner")
		}
		if err := s.act(ctx, append(order, "former"), former, owner); err != nil {
			return err
		}
		var event int64
		err := s.postgres.QueryRow(ctx, `select event from race_profile where customer = $1`, customer).Scan(&event)
		s.state(history.OpVersion, customer, event)
		return err
	}
}

func (s *scene) moved(ctx context.Context, lane string, m move, handle func(context.Context, *scene, move) (bool, error)) error {
	call := s.told.Invoke(history.Event{Lane: lane, Op: history.OpApply, Key: m.customer, Stamp: m.seq})
	done, err := handle(ctx, s, m)
	if err == nil && !done {
		call.EndWith(refused("it was handled before"))
		return nil
	}
	call.End(err)
	return err
}

func moveTo(ctx context.Context, s *scene, m move) (done bool, err error) {
	return true, pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) error { return writeCity(ctx, tx, m) })
}

func moveInSequence(ctx context.Context, s *scene, m move) (done bool, err error) {
	outcome, err := once.Tx(ctx, postgres.Pool(s.postgres), profiles, once.Message{Key: m.customer, Seq: m.seq},
		func(ctx context.Context, tx pgx.Tx) error { return writeCity(ctx, tx, m) })
	return outcome == once.Done, err
}

func writeCity(ctx context.Context, tx pgx.Tx, m move) error {
	_, err := tx.Exec(ctx, `insert into race_profile values ($1, $2, $3)
		on conflict (customer) do update set city = excluded.city, event = excluded.event`,
		m.customer, "city "+strconv.FormatInt(m.seq, 10), m.seq)
	return err
}
