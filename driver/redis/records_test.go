package redis

import (
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Mark and data of a record are one key, so an eviction removes both or neither.
func TestRecordsKeepMarkAndDataTogether(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t, "--maxmemory-policy", "allkeys-lru")
	operator := dial(t, server.Addr())
	records := NewRecords(dial(t, server.Addr()), "app/")
	enter := func(counter int64, writes ...driver.Write) error {
		return records.Enter(t.Context(), driver.Raise{Resource: "r", Token: tokenOf(t, counter, 0), Source: "me"}, writes...)
	}
	must := func(err error) {
		t.Helper()
		testbed.OK(t, err)
	}
	must(enter(10, driver.Write{Key: "a", Value: []byte("1")}, driver.Write{Key: "b", Value: []byte("2")}))
	must(enter(11, driver.Write{Key: "b", Delete: true}, driver.Write{Key: "token", Value: []byte("mine")}))
	var stale *interlock.StaleTokenError
	if err := enter(10, driver.Write{Key: "a", Value: []byte("old")}); !errors.As(err, &stale) || stale.Seen != tokenOf(t, 11, 0) {
		t.Fatalf("a stale write: %v", err)
	}
	if err := enter(12, driver.Write{}); interlock.Kind(err) != interlock.Bug {
		t.Errorf("a field without a name: %v", err)
	}
	data, err := records.Get(t.Context(), "r")
	if err != nil || len(data) != 2 || string(data["a"]) != "1" || string(data["token"]) != "mine" {
		t.Fatalf("%q, %v", data, err)
	}
	mark, err := records.Mark(t.Context(), "r")
	if err != nil || mark.Token != tokenOf(t, 11, 0) || mark.Source != "me" {
		t.Fatalf("%+v, %v", mark, err)
	}
	if old, err := records.Rebase(t.Context(), "r", tokenOf(t, 9, 0), "test", "op"); err != nil || old.Token != mark.Token {
		t.Fatalf("%+v, %v", old, err)
	}
	must(enter(9))
	keys, err := raw(t, operator, "KEYS", "*record*").AsStrSlice()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v; want one", keys, err)
	}
	must(raw(t, operator, "DEL", keys[0]).Error()) // as an eviction does
	if data, err := records.Get(t.Context(), "r"); err != nil || len(data) != 0 {
		t.Fatalf("%q, %v: data is left without its mark", data, err)
	}
}
