package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testMissingTransaction checks that a missing transaction is empty and not an error.
func testMissingTransaction(s *journalScene) {
	if head, all := s.read("nothing"); head.Transaction != "" || !head.Due.IsZero() || len(all) > 0 {
		s.Fatalf("a missing transaction is %+v", head)
	}
	s.mustBeDue(0)
	heads, err := s.store.Heads(s.Context(), "", 10)
	payload, err2 := s.store.Payload(s.Context(), "nothing", []byte("sum"))
	if len(heads) > 0 || payload != nil || errors.Join(err, err2) != nil {
		s.Fatalf("%v, %q, %v, %v", heads, payload, err, err2)
	}
}

// testRecordsAreRead checks that every process reads everything that was written.
func testRecordsAreRead(s *journalScene) {
	epoch := s.enter(3, 1)
	data := []byte{0, 1, 0xff, '"', '\'', '\\', '\n', 0x80}
	first := driver.Record{Kind: "begin", Data: data, Sum: bytes.Repeat([]byte{0xfe}, 32)}
	s.mustAppend(driver.Append{Transaction: "t", Shard: 3, Type: "order", Records: []driver.Record{first}, Due: s.at(time.Second)})
	s.mustAppend(driver.Append{Transaction: "t", Shard: 3, Type: "ignored", Epoch: epoch, After: 1,
		Records: []driver.Record{{Kind: "sent", Step: "reserve"}, {Kind: "done", Step: "reserve", Data: []byte("{}"), Sum: []byte{7}}}, Due: s.at(time.Minute)})
	head, all, err := s.open().Read(s.Context(), "t", 0)
	if err != nil || len(all) != 3 {
		s.Fatalf("%d records, %v", len(all), err)
	}
	if head.Transaction != "t" || head.Shard != 3 || head.Type != "order" || head.Position != 3 || !bytes.Equal(head.Sum, []byte{7}) ||
		!head.Due.Equal(s.at(time.Minute)) || head.Claimed || !head.Ended.IsZero() || !head.Began.Equal(all[0].Written) {
		s.Errorf("head %+v", head)
	}
	if r := all[0]; r.Kind != "begin" || r.Step != "" || !bytes.Equal(r.Data, data) || !bytes.Equal(r.Sum, first.Sum) || r.Epoch != 0 {
		s.Errorf("first record %+v", r)
	}
	if r := all[2]; r.Position != 3 || r.Kind != "done" || r.Step != "reserve" || string(r.Data) != "{}" || r.Epoch != epoch ||
		time.Since(r.Written).Abs() > time.Hour {
		s.Errorf("third record %+v", r)
	}
	if _, all, err = s.store.Read(s.Context(), "t", 2); err != nil || len(all) != 1 || all[0].Position != 3 {
		s.Errorf("after the second: %+v, %v", all, err)
	}
	if _, all, err = s.store.Read(s.Context(), "t", 9); err != nil || len(all) != 0 {
		s.Errorf("after the last: %+v, %v", all, err)
	}
}

// testHeadHasBeginTime checks that every head has the time of the first record, also after
// later records and among other transactions.
func testHeadHasBeginTime(s *journalScene) {
	epoch := s.enter(0, 1)
	first := func(name string) time.Time {
		s.Helper()
		head, all := s.read(name)
		if head.Began.IsZero() || !head.Began.Equal(all[0].Written) || head.Began.After(all[len(all)-1].Written) {
			s.Fatalf("%q began at %v, its first record is of %v", name, head.Began, all[0].Written)
		}
		return head.Began
	}
	s.mustAppend(driver.Append{Transaction: "t", Records: records("begin", "sent"), Due: s.at(0)})
	began := first("t")
	errs := s.store.Append(s.Context(), []driver.Append{
		s.begin("u", s.at(time.Minute)),
		{Transaction: "t", Epoch: epoch, After: 2, Records: records("more"), Due: s.at(0)},
		s.begin("v", s.at(time.Minute)),
	})
	testbed.OK(s, errors.Join(errs...))
	first("u")
	first("v")
	due, err := s.store.Due(s.Context(), 0, driver.Head{}, 1)
	claimed, err2 := s.store.Claim(s.Context(), 0, epoch, s.at(0), s.at(time.Hour), 1)
	if len(due) != 1 || len(claimed) != 1 || errors.Join(err, err2) != nil {
		s.Fatalf("due %v, claimed %v, %v, %v", due, claimed, err, err2)
	}
	refused := s.mustBeElsewhere(s.append(s.store, s.begin("t", s.at(0))), "t", 0, 3).Found
	s.mustAppend(driver.Append{Transaction: "t", Epoch: epoch, After: 3, Records: records("end")})
	ended, err := s.store.Heads(s.Context(), "", 1)
	if err != nil || len(ended) != 1 {
		s.Fatalf("heads: %v, %v", ended, err)
	}
	for what, head := range map[string]driver.Head{"due": due[0], "claimed": claimed[0], "refused": refused, "ended": ended[0]} {
		if !head.Began.Equal(began) {
			s.Errorf("%s: it began at %v, not at %v", what, head.Began, began)
		}
	}
	if !first("t").Equal(began) {
		s.Errorf("it began at %v, and then at %v", began, first("t"))
	}
}

// transactionNames are ids that a store might confuse with each other or with its own.
var transactionNames = []string{"a", "A", "a ", "a/b", "a/b/c", "a:b", `it's "\`, "%s", "{a}", "a*", "ä", "ß", "日本", "--", "\n", strings.Repeat("x", driver.MaxTransaction)}

// testTransactionsAreData checks that each id is a separate transaction, with payloads.
func testTransactionsAreData(s *journalScene) {
	for i, name := range transactionNames {
		s.mustAppend(s.begin(name, s.at(time.Duration(i)*time.Second)))
		if err := s.store.PutPayload(s.Context(), name, []byte("sum"), []byte(name)); err != nil {
			s.Fatalf("keep for %q: %v", name, err)
		}
	}
	for i, name := range transactionNames {
		s.mustStand(name, s.at(time.Duration(i)*time.Second), "begin")
		if p, err := s.store.Payload(s.Context(), name, []byte("sum")); err != nil || string(p) != name {
			s.Errorf("payload of %q: %q, %v", name, p, err)
		}
	}
	s.mustBeDue(0, transactionNames...)
}

// testJournalLimits checks that data of the largest size is stored, and that larger or
// invalid data is rejected before anything is done.
func testJournalLimits(s *journalScene) {
	large := s.begin("large", s.at(0))
	large.Records = nil
	for range driver.MaxRecords {
		large.Records = append(large.Records, driver.Record{Kind: strings.Repeat("k", 32), Step: strings.Repeat("s", 255),
			Data: bytes.Repeat([]byte{0xff}, driver.MaxRecord), Sum: make([]byte, 32)})
	}
	s.mustAppend(large)
	if head, all := s.read("large"); head.Position != driver.MaxRecords || len(all[0].Data) != driver.MaxRecord {
		s.Errorf("%d records, the first of %d bytes", head.Position, len(all[0].Data))
	}
	for name, c := range map[string]struct {
		change func(*driver.Append)
		kind   interlock.ErrorKind
	}{
		"data":           {func(a *driver.Append) { a.Records[0].Data = make([]byte, driver.MaxRecord+1) }, interlock.Definite},
		"no records":     {func(a *driver.Append) { a.Records = nil }, interlock.Bug},
		"many records":   {func(a *driver.Append) { a.Records = make([]driver.Record, driver.MaxRecords+1) }, interlock.Bug},
		"no kind":        {func(a *driver.Append) { a.Records[0].Kind = "" }, interlock.Bug},
		"kind":           {func(a *driver.Append) { a.Records[0].Kind = strings.Repeat("k", 33) }, interlock.Bug},
		"step":           {func(a *driver.Append) { a.Records[0].Step = strings.Repeat("s", 256) }, interlock.Bug},
		"sum":            {func(a *driver.Append) { a.Records[0].Sum = make([]byte, 33) }, interlock.Bug},
		"no id":          {func(a *driver.Append) { a.Transaction = "" }, interlock.Bug},
		"id":             {func(a *driver.Append) { a.Transaction = strings.Repeat("x", driver.MaxTransaction+1) }, interlock.Bug},
		"id not UTF-8":   {func(a *driver.Append) { a.Transaction = "a\xff" }, interlock.Bug},
		"NUL in id":      {func(a *driver.Append) { a.Transaction = "a\x00b" }, interlock.Bug},
		"type not UTF-8": {func(a *driver.Append) { a.Type = "\xc3" }, interlock.Bug},
		"NUL in type":    {func(a *driver.Append) { a.Type = "\x00" }, interlock.Bug},
		"step not UTF-8": {func(a *driver.Append) { a.Records[0].Step = "\xff" }, interlock.Bug},
		"NUL in kind":    {func(a *driver.Append) { a.Records[0].Kind = "a\x00" }, interlock.Bug},
		"type":           {func(a *driver.Append) { a.Type = strings.Repeat("t", 256) }, interlock.Bug},
		"shard below":    {func(a *driver.Append) { a.Shard = -1 }, interlock.Bug},
		"position below": {func(a *driver.Append) { a.After = -1 }, interlock.Bug},
		"epoch below":    {func(a *driver.Append) { a.Epoch = -1 }, interlock.Bug},
	} {
		a := s.begin("bad", s.at(0))
		c.change(&a)
		if err := s.append(s.store, a); interlock.Kind(err) != c.kind || err == nil {
			s.Errorf("%s: %v (%v), want %v", name, err, interlock.Kind(err), c.kind)
		}
	}
	for _, id := range []string{"a\xff", "a\x00b"} {
		_, _, err := s.store.Read(s.Context(), id, 0)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		_, err = s.store.Payload(s.Context(), id, []byte("sum"))
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		_, err = s.store.Heads(s.Context(), id, 1)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		s.mustFail(s.store.PutPayload(s.Context(), id, []byte("sum"), nil), interlock.Bug, interlock.ErrName)
	}
	if head, _ := s.read("bad"); head.Transaction != "" {
		s.Errorf("a refused append was stored: %+v", head)
	}
}

// testPayloads checks that a payload is stored once, for its transaction.
func testPayloads(s *journalScene) {
	large := bytes.Repeat([]byte("0123456789abcdef"), driver.MaxPayload/16)
	for _, p := range []struct{ transaction, sum, data string }{{"t", "1", string(large)}, {"t", "2", ""}, {"u", "1", "of u"}} {
		for range 2 {
			if err := s.store.PutPayload(s.Context(), p.transaction, []byte(p.sum), []byte(p.data)); err != nil {
				s.Fatalf("keep %d bytes: %v", len(p.data), err)
			}
		}
		got, err := s.open().Payload(s.Context(), p.transaction, []byte(p.sum))
		if err != nil || string(got) != p.data {
			s.Errorf("%d bytes, want %d: %v", len(got), len(p.data), err)
		}
	}
	s.mustFail(s.store.PutPayload(s.Context(), "t", []byte("3"), append(large, 0)), interlock.Definite, nil)
	s.mustFail(s.store.PutPayload(s.Context(), "", []byte("3"), nil), interlock.Bug, interlock.ErrName)
	s.mustFail(s.store.PutPayload(s.Context(), "t", nil, nil), interlock.Bug, nil)
}

// testHeadsInPages checks that every transaction is listed once, ordered by id.
func testHeadsInPages(s *journalScene) {
	var want []string
	for i := range 25 {
		a := s.begin(fmt.Sprintf("t%02d", i), s.at(time.Duration(-i)*time.Second))
		if a.Shard = i % 3; i%5 == 0 {
			a.Due = time.Time{}
		}
		s.mustAppend(a)
		want = append(want, a.Transaction)
	}
	var got []string
	for behind := ""; ; {
		heads, err := s.store.Heads(s.Context(), behind, 10)
		testbed.OK(s, err)
		if len(heads) == 0 {
			break
		}
		got = append(got, idsOf(heads)...)
		behind = got[len(got)-1]
		if len(heads) > 10 || len(got) > len(want) {
			s.Fatalf("%d heads in a page: %q", len(heads), got)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("listed %q, want %q", got, want)
	}
}

// testJournalContextAlreadyEnded checks that nothing is sent and the error is definite.
func testJournalContextAlreadyEnded(s *journalScene) {
	epoch := s.enter(0, 1)
	s.mustAppend(s.begin("t", s.at(0)))
	ctx, cause := endedContext(s.T)
	a := s.begin("t", s.at(time.Hour))
	a.After = 1
	s.mustFail(s.store.Append(ctx, []driver.Append{a})[0], interlock.Definite, cause)
	s.mustFail(s.store.Enter(ctx, 0, s.token(2, 0)), interlock.Definite, cause)
	s.mustFail(s.store.PutPayload(ctx, "t", []byte("sum"), []byte("x")), interlock.Definite, cause)
	_, err := s.store.Claim(ctx, 0, epoch, s.at(0), s.at(time.Hour), 1)
	s.mustFail(err, interlock.Definite, cause)
	_, _, err = s.store.Read(ctx, "t", 0)
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.DueShards(ctx, []int{0}, s.at(0))
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Forget(ctx, s.at(time.Hour), 1)
	s.mustFail(err, interlock.Definite, cause)
	s.mustStand("t", s.at(0), "begin")
	a.Epoch = epoch
	s.mustAppend(a)
}

// testLostReplyToAppend checks that an append without an answer is Uncertain and that
// a reader can see afterwards that it was done.
func testLostReplyToAppend(s *journalScene) {
	epoch := s.enter(0, 1)
	s.mustAppend(s.begin("t", s.at(0)))
	again := driver.Append{Transaction: "t", Epoch: epoch, After: 1, Records: records("sent"), Due: s.at(time.Second)}
	s.loseReply(func(ctx context.Context) error { return s.store.Append(ctx, []driver.Append{again})[0] })
	fresh := s.open()
	s.persistUntil("the record that was written without a reply", func(ctx context.Context) (bool, error) {
		head, _, err := fresh.Read(ctx, "t", 0)
		return head.Position >= 2, err
	})
	var found *driver.PositionError
	s.persist("append again", func(ctx context.Context) error {
		err := fresh.Append(ctx, []driver.Append{again})[0]
		if errors.As(err, &found) {
			return nil
		}
		return errors.Join(errors.New("it was not refused"), err)
	})
	if string(found.Found.Sum) != "sum of sent" || found.Found.Position != 2 {
		s.Fatalf("the refusal reports %+v", found)
	}
}

// testJournalOverARestart checks that acknowledged records survive a kill of the server
// and that the epoch still applies.
func testJournalOverARestart(s *journalScene) {
	if !s.durable {
		s.Skip("this store forgets")
	}
	old := s.enter(0, 1)
	epoch := s.enter(0, 2)
	s.mustAppend(s.begin("t", s.at(0)))
	s.faults.Kill()
	s.faults.Restart()
	fresh := s.open()
	s.persist("append after the restart", func(ctx context.Context) error {
		a := driver.Append{Transaction: "t", Epoch: epoch, After: 1, Records: records("sent"), Due: s.at(time.Second)}
		err := fresh.Append(ctx, []driver.Append{a})[0]
		if elsewhere, found := errors.AsType[*driver.PositionError](err); found && string(elsewhere.Found.Sum) == "sum of sent" {
			return nil
		}
		return err
	})
	s.store = fresh
	s.mustStand("t", s.at(time.Second), "begin", "sent")
	s.mustBeStale(s.append(fresh, driver.Append{Transaction: "t", Epoch: old, After: 2, Records: records("x"), Due: s.at(0)}), driver.ShardName(0), epoch, old)
	s.mustBeDue(0, "t")
}
