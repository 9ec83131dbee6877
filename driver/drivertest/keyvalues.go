package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// KeyValuesHarness gives [RunKeyValues] access to one driver.KeyValues and its store.
type KeyValuesHarness = StoreHarness[driver.KeyValues]

// KeyValuesBackend is one running key-value store.
type KeyValuesBackend = StoreBackend[driver.KeyValues]

// RunKeyValues runs the conformance suite of driver.KeyValues.
func RunKeyValues(t *testing.T, h KeyValuesHarness) {
	runStore(t, h, func(s *storeScene[driver.KeyValues]) *keyValuesScene { return &keyValuesScene{storeScene: s} }, []suiteTest[*keyValuesScene]{
		{"SwapComparesAndSets", 0, testSwapComparesAndSets},
		{"SwapsAreAtomic", 0, testSwapsAreAtomic},
		{"SwapLosesNoUpdate", 0, testSwapLosesNoUpdate},
		{"RevisionsDoNotRecur", 0, testRevisionsDoNotRecur},
		{"ScanIsInOrder", 0, testScanIsInOrder},
		{"ValuesAreData", 0, testKeyValuesAreData},
		{"SwapThatCannotBeIsABug", 0, testSwapThatCannotBeIsABug},
		{"KeyValuesContextAlreadyEnded", 0, testKeyValuesContextAlreadyEnded},
		{"LostReplyToSwap", Servers | LostReplies | onPaths, testLostReplyToSwap},
		{"KeyValuesOverARestart", Servers | Durable, testKeyValuesOverARestart},
	})
}

// keyValuesScene is one test with its store and a first opening of it.
type keyValuesScene struct{ *storeScene[driver.KeyValues] }

func (s *keyValuesScene) get(key string) driver.KeyValue {
	s.Helper()
	kvs, err := s.store.Get(s.Context(), key)
	if err != nil || len(kvs) != 1 || kvs[0].Key != key {
		s.Fatalf("get %q: %v, %v", key, kvs, err)
	}
	return kvs[0]
}

func (s *keyValuesScene) mustSwap(want bool, swaps ...driver.Swap) {
	s.Helper()
	revision, err := s.store.Swap(s.Context(), swaps...)
	if err != nil || (revision != 0) != want {
		s.Fatalf("swap %.300v: %v, %v", swaps, revision, err)
	}
	for _, w := range swaps {
		if want && !w.Delete {
			if kv := s.get(w.Key); kv.Revision != revision {
				s.Fatalf("%q has revision %d, the swap returned %d", w.Key, kv.Revision, revision)
			}
		}
	}
}

// put sets a key unconditionally.
func (s *keyValuesScene) put(key, value string) driver.KeyValue {
	s.Helper()
	s.mustSwap(true, driver.Swap{Key: key, Revision: s.get(key).Revision, Value: []byte(value)})
	return s.mustHold(key, value)
}

func (s *keyValuesScene) mustHold(key, value string) driver.KeyValue {
	s.Helper()
	kv := s.get(key)
	if string(kv.Value) != value || kv.Revision <= 0 {
		s.Fatalf("%q is %.100q at revision %d, want %.100q", key, kv.Value, kv.Revision, value)
	}
	return kv
}

func (s *keyValuesScene) mustLack(key string) {
	s.Helper()
	if kv := s.get(key); kv.Revision != 0 || len(kv.Value) > 0 {
		s.Fatalf("%q is %q at revision %d", key, kv.Value, kv.Revision)
	}
}

func testSwapComparesAndSets(s *keyValuesScene) {
	s.mustLack("a")
	s.mustSwap(false, driver.Swap{Key: "a", Revision: 1, Value: []byte("x")})
	s.mustSwap(true, driver.Swap{Key: "a", Value: []byte("one")})
	first := s.mustHold("a", "one")
	s.mustSwap(false, driver.Swap{Key: "a", Value: []byte("x")})
	s.mustSwap(true, driver.Swap{Key: "a", Revision: first.Revision, Value: []byte("two")})
	s.mustSwap(false, driver.Swap{Key: "a", Revision: first.Revision, Value: []byte("x")})
	s.mustSwap(false, driver.Swap{Key: "a", Revision: first.Revision, Delete: true})
	second := s.mustHold("a", "two")
	s.mustSwap(true, driver.Swap{Key: "a", Revision: second.Revision, Delete: true})
	s.mustLack("a")
	s.mustSwap(false, driver.Swap{Key: "a", Revision: second.Revision, Value: []byte("x")})
	kvs, err := s.store.Get(s.Context())
	if err != nil || len(kvs) != 0 {
		s.Fatalf("get of no key: %v, %v", kvs, err)
	}
}

// testSwapsAreAtomic checks that all swaps of a call are made or none, also if the last fails.
func testSwapsAreAtomic(s *keyValuesScene) {
	a, b := s.put("a", "1"), s.put("b", "1")
	swaps := []driver.Swap{{Key: "c", Value: []byte("2")}, {Key: "b", Revision: b.Revision, Delete: true},
		{Key: "a", Revision: a.Revision, Value: []byte("2")}}
	for i := range swaps {
		wrong := slices.Clone(swaps)
		wrong[i].Revision += 1 << 40
		s.mustSwap(false, wrong...)
	}
	s.mustHold("a", "1")
	s.mustHold("b", "1")
	s.mustLack("c")
	s.mustSwap(true, swaps...)
	kvs, err := s.store.Get(s.Context(), "c", "b", "a")
	if err != nil || string(kvs[0].Value) != "2" || kvs[1].Revision != 0 || string(kvs[2].Value) != "2" {
		s.Fatalf("after the swaps: %v, %v", kvs, err)
	}
	var all []driver.Swap
	for i := range driver.MaxSwaps {
		all = append(all, driver.Swap{Key: fmt.Sprintf("many/%03d", i), Value: []byte("x")})
	}
	s.mustSwap(true, all...)
	s.mustSwap(false, all...)
}

// testSwapLosesNoUpdate has processes add to two counters, which are always equal.
func testSwapLosesNoUpdate(s *keyValuesScene) {
	const writers, each = 4, 10
	s.atOnce(writers, func(i int, store driver.KeyValues) error {
		keys := []string{"x", "y"}
		if i%3 == 0 {
			slices.Reverse(keys) // no common order: a store must not deadlock permanently
		}
		for n := 0; n < each; {
			kvs, err := store.Get(s.Context(), keys...)
			if err == nil {
				var swaps []driver.Swap
				for _, kv := range kvs {
					swaps = append(swaps, driver.Swap{Key: kv.Key, Revision: kv.Revision, Value: append(kv.Value, '.')})
				}
				var revision int64
				if revision, err = store.Swap(s.Context(), swaps...); revision > 0 {
					n++
				}
			}
			if err != nil && interlock.Kind(err) != interlock.Retryable {
				return err
			}
		}
		return nil
	})
	s.mustHold("x", strings.Repeat(".", writers*each))
	s.mustHold("y", strings.Repeat(".", writers*each))
}

// testRevisionsDoNotRecur checks that a key that is deleted and rewritten gets a new revision.
func testRevisionsDoNotRecur(s *keyValuesScene) {
	seen := map[int64]bool{}
	for range 5 {
		kv := s.put("a", "same")
		if seen[kv.Revision] {
			s.Fatalf("revision %d came again", kv.Revision)
		}
		seen[kv.Revision] = true
		s.mustSwap(true, driver.Swap{Key: "a", Revision: kv.Revision, Delete: true})
	}
}

func testScanIsInOrder(s *keyValuesScene) {
	keys := []string{"a", "a/", "a/b", "a0", "B", "é", "z", "a\x01", "a%", "a_"}
	for _, key := range keys {
		s.put(key, "value of "+key)
	}
	slices.Sort(keys)
	scan := func(from, to string, limit int) (got []string) {
		s.Helper()
		kvs, err := s.store.Scan(s.Context(), from, to, limit)
		testbed.OK(s, err)
		for _, kv := range kvs {
			if string(kv.Value) != "value of "+kv.Key || kv.Revision <= 0 {
				s.Fatalf("%q is %q at %d", kv.Key, kv.Value, kv.Revision)
			}
			got = append(got, kv.Key)
		}
		return got
	}
	bounds := append([]string{"", "a\x00", "a/\x00b", "z\x00"}, keys...)
	for _, from := range bounds {
		for _, to := range bounds {
			var want []string
			for _, key := range keys {
				if key >= from && (to == "" || key < to) {
					want = append(want, key)
				}
			}
			if got := scan(from, to, 100); !slices.Equal(got, want) {
				s.Fatalf("from %q to %q: %q, want %q", from, to, got, want)
			}
		}
	}
	for limit, n := range map[int]int{3: 3, 0: 0, -1: 0, math.MaxInt: len(keys)} {
		if got := scan("", "", limit); !slices.Equal(got, keys[:n]) {
			s.Fatalf("at most %d: %q", limit, got)
		}
	}
}

func testKeyValuesAreData(s *keyValuesScene) {
	for _, key := range []string{"a b", "a'b", `a"b`, "a\nb", "{a}", "%s", "é", "?", "*", strings.Repeat("x", driver.MaxName)} {
		s.mustLack(key)
		s.put(key, "of "+key)
	}
	for _, value := range []string{"", "\x00\xff\r\n", strings.Repeat("\x80", driver.MaxKeyValue)} {
		s.put("a", value)
		if kvs, err := s.store.Scan(s.Context(), "a", "a\x01", 1); err != nil || len(kvs) != 1 || !bytes.Equal(kvs[0].Value, []byte(value)) {
			s.Fatalf("scan of %.20q: %v", value, err)
		}
	}
}

func testSwapThatCannotBeIsABug(s *keyValuesScene) {
	var many []driver.Swap
	for i := range driver.MaxSwaps + 1 {
		many = append(many, driver.Swap{Key: fmt.Sprint(i)})
	}
	for _, swaps := range [][]driver.Swap{{}, many, {{Key: ""}}, {{Key: "a\x00"}}, {{Key: "\xff"}}, {{Key: "a", Revision: -1}},
		{{Key: "a", Delete: true}}, {{Key: "a"}, {Key: "a"}}, {{Key: strings.Repeat("x", driver.MaxName+1)}},
		{{Key: "a", Value: make([]byte, driver.MaxKeyValue+1)}}} {
		_, err := s.store.Swap(s.Context(), swaps...)
		s.mustFail(err, interlock.Bug, nil)
	}
	for _, key := range []string{"", "\xff", "a\x00b", strings.Repeat("x", driver.MaxName+1)} {
		_, err := s.store.Get(s.Context(), "a", key)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
	}
	s.mustLack("a")
}

func testKeyValuesContextAlreadyEnded(s *keyValuesScene) {
	ctx, cause := endedContext(s.T)
	_, err := s.store.Swap(ctx, driver.Swap{Key: "a"})
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Get(ctx, "a")
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Scan(ctx, "", "", 1)
	s.mustFail(err, interlock.Definite, cause)
	s.mustLack("a")
}

// testLostReplyToSwap checks that the outcome is unknown and reading returns it. A lost read is
// Retryable.
func testLostReplyToSwap(s *keyValuesScene) {
	first := s.put("a", "one") // the connection is open
	s.loseReads(func(ctx context.Context) error {
		_, err := s.store.Get(ctx, "a")
		return err
	})
	s.loseReply(func(ctx context.Context) error {
		_, err := s.store.Swap(ctx, driver.Swap{Key: "a", Revision: first.Revision, Value: []byte("two")})
		return err
	})
	beside := s.beside()
	s.persistUntil("the swap without a reply", func(ctx context.Context) (bool, error) {
		kvs, err := beside.Get(ctx, "a")
		return err == nil && string(kvs[0].Value) == "two", err
	})
}

func testKeyValuesOverARestart(s *keyValuesScene) {
	gone := s.put("a", "one")
	s.mustSwap(true, driver.Swap{Key: "a", Revision: gone.Revision, Delete: true})
	kept := s.put("b", "one")
	s.restartAround(func(ctx context.Context) error {
		_, err := s.store.Swap(ctx, driver.Swap{Key: "b", Revision: kept.Revision, Value: []byte("two")})
		return err
	})
	s.persist("get after the restart", func(ctx context.Context) error {
		kvs, err := s.store.Get(ctx, "b")
		if err == nil && string(kvs[0].Value) != "one" && string(kvs[0].Value) != "two" {
			s.Fatalf("after the restart it is %q", kvs[0].Value)
		}
		return err
	})
	if again := s.put("a", "one"); again.Revision == gone.Revision {
		s.Fatal("a revision came again after the restart")
	}
}
