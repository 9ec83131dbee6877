package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/history"
)

// relay sends events that were written in the transactions of their producers.
type relay interface {
	// add writes an event in tx.
	add(ctx context.Context, tx pgx.Tx, id string) error
	// send delivers the committed events; ids are theirs.
	send(ctx context.Context, ids []string) error
	close() error
}

// office runs producers and a relay, and records their operations.
type office struct {
	*scene
	relay
	topic string

	mu        sync.Mutex
	committed []string
}

// produce adds an event, pauses, and commits it.
func (o *office) produce(ctx context.Context, producer string, pause func(string)) error {
	id := o.name(producer)
	call := o.told.Invoke(history.Event{Lane: producer, Op: history.OpPublish, Key: o.topic, ID: id})
	err := pgx.BeginFunc(ctx, o.postgres, func(tx pgx.Tx) error {
		err := o.add(ctx, tx, id)
		pause("") // the transaction continues with other work
		return err
	})
	call.End(err)
	if err == nil {
		o.mu.Lock()
		o.committed = append(o.committed, id)
		o.mu.Unlock()
	}
	return err
}

// drain has the relay send all events committed so far.
func (o *office) drain(ctx context.Context) error {
	o.mu.Lock()
	ids := slices.Clone(o.committed)
	o.mu.Unlock()
	call := o.told.Invoke(history.Event{Lane: "relay", Op: history.OpDrain})
	err := o.send(ctx, ids)
	call.End(err)
	return err
}

func (s *scene) deliver(topic, id string) {
	s.told.Invoke(history.Event{Lane: "relay", Op: history.OpDeliver, Key: topic, ID: id}).OK("")
}

const eventTable = `create table if not exists race_event
	(id bigserial primary key, topic text not null, message text not null, tx xid8 not null default pg_current_xact_id())`

var box = outbox.Table{Name: "race_outbox", Slices: 2}

func prepareOutbox(ctx context.Context, s systems) error {
	if err := s.create(ctx, eventTable); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) error { return box.Create(ctx, postgres.Tx(tx)) })
}

// claimedRelay is the relay of flow/outbox, under a lock. It runs until it is closed.
type claimedRelay struct {
	s       *scene
	topic   string
	stop    context.CancelFunc
	ended   chan error
	wake    func()
	arrived chan string
	got     map[string]bool
}

func newClaimedRelay(ctx context.Context, s *scene, topic string) (relay, error) {
	d, err := postgres.Open(ctx, s.postgres.Config().ConnConfig, nil)
	if err != nil {
		return nil, err
	}
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		return nil, errors.Join(err, afterwards(ctx, d.Close))
	}
	r := &claimedRelay{s: s, topic: topic, ended: make(chan error, 1), arrived: make(chan string, 100), got: map[string]bool{}}
	sender, err := outbox.NewRelay(postgres.Pool(s.postgres), box, outbox.Func(r.receive), nil)
	if err != nil {
		return nil, errors.Join(err, afterwards(ctx, locks.Close), afterwards(ctx, d.Close))
	}
	r.wake = sender.Wake
	running, stop := context.WithCancel(ctx)
	r.stop = stop
	go func() {
		err := locks.Do(running, topic, sender.RunAll)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		r.ended <- errors.Join(err, afterwards(ctx, locks.Close), afterwards(ctx, d.Close))
	}()
	return r, nil
}

// receive implements the sink. It ignores events of earlier runs.
func (r *claimedRelay) receive(ctx context.Context, m outbox.Message) error {
	if m.Topic == r.topic {
		r.s.deliver(m.Topic, m.ID)
		r.arrived <- m.ID
	}
	return nil
}

func (r *claimedRelay) add(ctx context.Context, tx pgx.Tx, id string) error {
	return box.Add(ctx, postgres.Tx(tx), outbox.Message{ID: id, Topic: r.topic, Key: r.topic, Payload: []byte(id)})
}

// send waits until all have arrived, for a limited time: then the checker decides.
func (r *claimedRelay) send(ctx context.Context, ids []string) error {
	r.wake()
	patience := time.NewTimer(bound / 3)
	defer patience.Stop()
	for _, id := range ids {
		for !r.got[id] {
			select {
			case arrived := <-r.arrived:
				r.got[arrived] = true
			case <-patience.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

func (r *claimedRelay) close() error { r.stop(); return <-r.ended }
