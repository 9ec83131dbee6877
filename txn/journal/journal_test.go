package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestBeginOnce: one of several concurrent begins succeeds, and the others can read its
// records.
func TestBeginOnce(t *testing.T) {
	store := memory.NewJournal()
	first, second := open(t, store, nil), open(t, store, nil)
	ok(t, txntest.Second(first.Begin(t.Context(), "order/1", "order", due, says("begin", "sent")...)))
	_, err := second.Begin(t.Context(), "order/1", "order", due, says("other")...)
	wantKind(t, err, interlock.Definite, journal.ErrExists)
	log, entries, err := second.Open(t.Context(), "order/1")
	ok(t, err)
	if got := kinds(entries); !slices.Equal(got, []string{"begin", "sent"}) || log.Head().Type != "order" || !log.Head().Due.Equal(due) {
		t.Errorf("opened %v, %+v", got, log.Head())
	}
	if log, entries, err := second.Open(t.Context(), "order/2"); log != nil || entries != nil || err != nil {
		t.Errorf("what does not exist: %v, %v, %v", log, entries, err)
	}
}

// TestAppendBehindAnother: a log that is not at the last record appends nothing.
func TestAppendBehindAnother(t *testing.T) {
	j := open(t, memory.NewJournal(), nil)
	mine, err := j.Begin(t.Context(), "t", "", due, says("begin")...)
	ok(t, err)
	other, _, err := j.Open(t.Context(), "t")
	ok(t, err)
	ok(t, other.Append(t.Context(), due.Add(time.Second), says("decide")...))
	wantKind(t, mine.Append(t.Context(), due, says("sent")...), interlock.Definite, journal.ErrConflict)
	ok(t, other.End(t.Context(), says("end")...))
	wantKind(t, other.Append(t.Context(), due, says("late")...), interlock.Definite, journal.ErrConflict)
	_, entries, err := j.Open(t.Context(), "t")
	if got := kinds(entries); err != nil || !slices.Equal(got, []string{"begin", "decide", "end"}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestLostAnswer: an append whose answer was lost is recognized as done and as its own,
// and not repeated; so are a begin and an end.
func TestLostAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		j := open(t, store, nil)
		store.lose = 1
		log, err := j.Begin(t.Context(), "t", "", due, says("begin")...)
		ok(t, err)
		store.lose = 2
		ok(t, log.Append(t.Context(), due, says("sent", "done")...))
		store.lose = 1
		ok(t, log.End(t.Context(), says("end")...))
		_, entries, err := j.Open(t.Context(), "t")
		if got := kinds(entries); err != nil || !slices.Equal(got, []string{"begin", "sent", "done", "end"}) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// TestSameWordsAreNotMine: equal records under another epoch belong to another owner.
func TestSameWordsAreNotMine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		j := open(t, store, &journal.Options{Shards: 1})
		ok(t, txntest.Second(j.Begin(t.Context(), "t", "", due, says("begin")...)))
		mine, _, err := j.Open(t.Context(), "t")
		ok(t, err)
		shard, err := j.Own(t.Context(), grant(1), 0)
		ok(t, err)
		theirs, _, err := shard.Open(t.Context(), "t")
		ok(t, err)
		ok(t, theirs.Append(t.Context(), due, says("decide")...))
		store.refuse = 1
		wantKind(t, mine.Append(t.Context(), due, says("decide")...), interlock.Definite, journal.ErrConflict)
	})
}

// TestRetried: Retryable errors of a store are retried until patience ends.
func TestRetried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		j := open(t, store, &journal.Options{Patience: time.Minute})
		store.refuse = 5
		log, err := j.Begin(t.Context(), "t", "", due, says("begin")...)
		ok(t, err)
		store.refuse = 1 << 30
		began := time.Now()
		wantKind(t, log.Append(t.Context(), due, says("sent")...), interlock.Retryable, nil)
		if took := time.Since(began); took < 50*time.Second || took > 61*time.Second {
			t.Errorf("given up after %v", took)
		}
		if len(store.groups) > 200 {
			t.Errorf("%d requests in a minute", len(store.groups))
		}
	})
}

// TestGroupCommit: appends that arrive during a request are sent with the next.
func TestGroupCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		gate := make(chan struct{})
		store.gate = gate
		j := open(t, store, &journal.Options{Requests: 1, Group: 40})
		var wg sync.WaitGroup
		for i := range 101 {
			wg.Go(func() {
				if _, err := j.Begin(t.Context(), fmt.Sprint("t", i), "", due, says("begin")...); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(gate)
		wg.Wait()
		if !slices.Equal(store.groups, []int{1, 40, 40, 20}) {
			t.Errorf("requests of %v appends", store.groups)
		}
	})
}

// TestGroupHasEachTransactionOnce: two appends to one transaction are in different
// requests.
func TestGroupHasEachTransactionOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		gate := make(chan struct{})
		store.gate = gate
		j := open(t, store, nil)
		outcomes := make(chan error, 8)
		for range cap(outcomes) {
			go func() {
				_, err := j.Begin(t.Context(), "t", "", due, says(fmt.Sprint(len(outcomes)))...)
				outcomes <- err
			}()
		}
		synctest.Wait()
		close(gate)
		for range cap(outcomes) {
			if err := <-outcomes; err != nil && !errors.Is(err, journal.ErrExists) {
				t.Error(err)
			}
		}
		for _, n := range store.groups {
			if n != 1 {
				t.Errorf("requests of %v appends", store.groups)
			}
		}
	})
}

// TestCallerWhoLeaves: if the caller leaves, an unsent append is not sent; the outcome of
// a sent one is unknown.
func TestCallerWhoLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		gate := make(chan struct{})
		store.gate = gate
		j := open(t, store, &journal.Options{Requests: 1})
		gone := errors.New("gone")
		begin := func(id string) chan error {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
			outcome := make(chan error, 1)
			go func() {
				defer cancel()
				_, err := j.Begin(ctx, id, "", due, says("begin")...)
				outcome <- err
			}()
			synctest.Wait()
			return outcome
		}
		sent, unsent := begin("sent"), begin("unsent")
		wantKind(t, <-sent, interlock.Uncertain, gone)
		wantKind(t, <-unsent, interlock.Definite, gone)
		close(gate)
		ok(t, j.Close())
		for id, present := range map[string]bool{"sent": true, "unsent": false} {
			if head, _, err := store.Read(t.Context(), id, 0); err != nil || (head.Position > 0) != present {
				t.Errorf("%s: %+v, %v", id, head, err)
			}
		}
		_, err := j.Begin(t.Context(), "x", "", due, says("begin")...)
		wantKind(t, err, interlock.Bug, interlock.ErrClosed)
	})
}

// TestQueuedBehindTheSameID: an append that leaves the queue after another append to its
// transaction has an unknown outcome, because the other one may have written the same. An
// append without another one to its transaction has not happened.
func TestQueuedBehindTheSameID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		store.gate = make(chan struct{})
		j := open(t, store, &journal.Options{Requests: 1, Group: 1, Patience: time.Minute})
		gone := errors.New("gone")
		begin := func(id string, wait time.Duration) chan error {
			outcome := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), wait, gone)
				defer cancel()
				_, err := j.Begin(ctx, id, "", due, says("begin")...)
				outcome <- err
			}()
			synctest.Wait()
			return outcome
		}
		sent, behindSent := begin("sent", time.Hour), begin("sent", time.Second)
		queued, behindQueued, alone := begin("queued", time.Hour), begin("queued", time.Second), begin("alone", time.Second)
		wantKind(t, <-behindSent, interlock.Uncertain, gone)
		wantKind(t, <-behindQueued, interlock.Uncertain, gone)
		wantKind(t, <-alone, interlock.Definite, gone)
		time.Sleep(30 * time.Second)
		before, patient := begin("before", time.Hour), begin("patient", time.Hour)
		wantKind(t, <-patient, interlock.Retryable, context.DeadlineExceeded)
		close(store.gate)
		<-sent
		<-queued
		<-before
	})
}

// TestLargeData: data of any length is read back, and large data is stored beside the
// record.
func TestLargeData(t *testing.T) {
	store := memory.NewJournal()
	j := open(t, store, &journal.Options{Inline: 100})
	var entries []journal.Entry
	for _, n := range []int{0, 1, 100, 101, driver.MaxPayload} {
		entries = append(entries, journal.Entry{Kind: fmt.Sprint(n), Data: bytes.Repeat([]byte{1}, n)})
	}
	ok(t, txntest.Second(j.Begin(t.Context(), "t", "", due, entries...)))
	_, records, err := store.Read(t.Context(), "t", 0)
	ok(t, err)
	for _, r := range records {
		if len(r.Data) > 101 {
			t.Errorf("a record of %d bytes", len(r.Data))
		}
	}
	_, got, err := j.Open(t.Context(), "t")
	ok(t, err)
	for i := range entries {
		if !bytes.Equal(got[i].Data, entries[i].Data) {
			t.Errorf("%d bytes of %d", len(got[i].Data), len(entries[i].Data))
		}
	}
	_, err = j.Begin(t.Context(), "u", "", due, journal.Entry{Kind: "x", Data: make([]byte, driver.MaxPayload+1)})
	wantKind(t, err, interlock.Definite, nil)
}

// TestOwners: a new owner finds everything, including claimed transactions of the former
// one, which can write nothing more.
func TestOwners(t *testing.T) {
	store := memory.NewJournal()
	j := open(t, store, &journal.Options{Shards: 1})
	former, err := j.Own(t.Context(), grant(1), 0)
	ok(t, err)
	for i := range 5 {
		ok(t, txntest.Second(j.Begin(t.Context(), fmt.Sprint("t", i), "", due.Add(time.Duration(i)*time.Second), says("begin")...)))
	}
	claimed, err := former.Claim(t.Context(), due.Add(time.Hour), due.Add(2*time.Hour), 2)
	if err != nil || len(claimed) != 2 || claimed[0].Transaction != "t0" {
		t.Fatalf("claimed %+v, %v", claimed, err)
	}
	log, _, err := former.Open(t.Context(), "t0")
	ok(t, err)
	ok(t, log.Append(t.Context(), due, says("sent")...))

	mine := grant(2)
	owner, err := open(t, store, &journal.Options{Shards: 1}).Own(t.Context(), mine, 0)
	ok(t, err)
	wantKind(t, log.Append(t.Context(), due, says("done")...), interlock.Definite, interlock.ErrStaleToken)
	_, err = former.Claim(t.Context(), due.Add(time.Hour), due.Add(2*time.Hour), 2)
	wantKind(t, err, interlock.Definite, interlock.ErrStaleToken)
	_, err = j.Own(t.Context(), grant(1), 0)
	wantKind(t, err, interlock.Definite, interlock.ErrStaleToken)

	var found []string
	for head, err := range owner.Unfinished(t.Context()) {
		ok(t, err)
		found = append(found, fmt.Sprint(head.Transaction, head.Claimed))
	}
	if want := []string{"t0false", "t2false", "t3false", "t4false", "t1true"}; !slices.Equal(found, want) {
		t.Errorf("unfinished %v, want %v", found, want)
	}
	mine.End(interlock.ErrLost)
	_, err = owner.Claim(t.Context(), due, due, 1)
	wantKind(t, err, interlock.Definite, interlock.ErrLost)
	_, err = j.Own(t.Context(), mine, 0)
	wantKind(t, err, interlock.Definite, interlock.ErrLost)
	_, err = j.Own(t.Context(), grant(3), 1)
	wantKind(t, err, interlock.Bug, nil)
}

// TestClaimEndsBetween: an owner whose claim ends while the store refuses does not retry.
func TestClaimEndsBetween(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		j := open(t, store, &journal.Options{Shards: 1})
		c := grant(1)
		shard, err := j.Own(t.Context(), c, 0)
		ok(t, err)
		log, err := shard.Begin(t.Context(), "t", "", due, says("begin")...)
		ok(t, err)
		store.refuse = 1 << 30
		time.AfterFunc(time.Second, func() { c.End(interlock.ErrExpired) })
		wantKind(t, log.Append(t.Context(), due, says("sent")...), interlock.Definite, interlock.ErrExpired)
	})
}

// TestLostAnswerThenRefused: a final refusal does not prove that an append was not done,
// if the answer to an earlier try was lost; the error still has the cause.
func TestLostAnswerThenRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := newSlow()
		j := open(t, store, &journal.Options{Shards: 1})
		c := grant(1)
		shard, err := j.Own(t.Context(), c, 0)
		ok(t, err)
		log, err := shard.Begin(t.Context(), "t", "", due, says("begin")...)
		ok(t, err)
		store.lose, store.gate = 1, make(chan struct{})
		go func() {
			synctest.Wait()
			close(store.gate)
			c.End(interlock.ErrExpired)
		}()
		wantKind(t, log.Append(t.Context(), due, says("sent")...), interlock.Uncertain, interlock.ErrExpired)
		if _, records, err := store.Read(t.Context(), "t", 0); len(records) != 2 || err != nil {
			t.Errorf("%d records, %v", len(records), err)
		}
	})
}

// TestBadInput is refused before anything is sent.
func TestBadInput(t *testing.T) {
	j := open(t, memory.NewJournal(), nil)
	log, err := j.Begin(t.Context(), "t", "", due, says("begin")...)
	ok(t, err)
	wantKind(t, log.Append(t.Context(), time.Time{}, says("x")...), interlock.Bug, nil)
	wantKind(t, log.Append(t.Context(), due), interlock.Bug, nil)
	wantKind(t, log.Append(t.Context(), due, says(string(make([]byte, 33)))...), interlock.Bug, nil)
	_, err = j.Begin(t.Context(), "", "", due, says("begin")...)
	wantKind(t, err, interlock.Bug, interlock.ErrName)
	_, err = j.Begin(t.Context(), "u", "", time.Time{}, says("begin")...)
	wantKind(t, err, interlock.Bug, nil)
	for _, o := range []journal.Options{{Shards: -1}, {Shards: 4097}, {Inline: driver.MaxRecord}, {Group: -1}, {Requests: -1}, {Patience: -1}} {
		_, err := journal.New(memory.NewJournal(), &o)
		wantKind(t, err, interlock.Bug, nil)
	}
	_, err = j.Heads(t.Context(), "", -1)
	wantKind(t, err, interlock.Bug, nil)
	_, err = j.Forget(t.Context(), due, -1)
	wantKind(t, err, interlock.Bug, nil)
	shard, err := j.Own(t.Context(), grant(1), 0)
	ok(t, err)
	_, err = shard.Claim(t.Context(), due, due, -1)
	wantKind(t, err, interlock.Bug, nil)
	ok(t, log.Append(t.Context(), due, says("still")...))
}

// TestLostAnswerThenOutrun: an append that may have been done is Uncertain, although all later tries
// were refused until patience ended, or another process has appended after it; then the log must be
// reopened nonetheless.
func TestLostAnswerThenOutrun(t *testing.T) {
	for _, outrun := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			store := newSlow()
			j := open(t, store, nil)
			log, err := j.Begin(t.Context(), "t", "", due, says("begin")...)
			ok(t, err)
			store.lose, store.refuse = 1, 0
			lost := make(chan error, 1)
			go func() { lost <- log.Append(t.Context(), due, says("sent")...) }()
			synctest.Wait()
			want, left := error(nil), []string{"begin", "sent"}
			if outrun {
				other, _, err := j.Open(t.Context(), "t")
				ok(t, err)
				ok(t, other.Append(t.Context(), due, says("helped")...))
				want, left = journal.ErrConflict, append(left, "helped")
			} else {
				store.mu.Lock()
				store.refuse = 1 << 30
				store.mu.Unlock()
			}
			wantKind(t, <-lost, interlock.Uncertain, want)
			_, entries, err := j.Open(t.Context(), "t")
			if got := kinds(entries); err != nil || !slices.Equal(got, left) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func FuzzVerify(f *testing.F) {
	for _, s := range []string{"", "{}\n", `{"interlock_audit":1,"chain":""}` + "\n", `{"interlock_audit":1}` + "\n" + `{"end":true}` + "\n", "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, err := journal.Verify(bytes.NewReader(text)); n < 0 || err == nil && len(text) == 0 {
			t.Fatalf("%q: %d records, %v", text, n, err)
		}
	})
}
