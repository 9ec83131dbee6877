package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var oddNames = []string{
	"a", "{a}b", "a{b}c", "a{}b", "{}", "}{", "{", "}", "{{a}}", "a{b", "a}b{c}", "ключ{слот}", "\x00\xff{\xfe}", "interlock",
	"interlock:", "a b\n", strings.Repeat("{x}", 100), strings.Repeat("y", driver.MaxName),
}

func TestEverySlotHasAShortTag(t *testing.T) {
	t.Parallel()
	var table tagTable
	for slot := range slots {
		tag := table.of(slot)
		if got := slotOf("x{" + tag + "}y"); got != slot || len(tag) > 4 {
			t.Fatalf("tag %q of slot %d hashes to %d", tag, slot, got)
		}
	}
	// The first find of one process must equal the last of another.
	var other tagTable
	for slot := slots - 1; slot >= 0; slot-- {
		if other.of(slot) != table.of(slot) {
			t.Fatalf("slot %d has the tags %q and %q", slot, other.of(slot), table.of(slot))
		}
	}
}

func TestKeysOfANameShareItsSlot(t *testing.T) {
	t.Parallel()
	for _, name := range oddNames {
		seen := map[string]bool{}
		k := layout{cluster: true}.keysOf(name)
		for _, key := range []string{k.lock, k.queue, k.wait, k.counter, k.names, markKey(name), fenceKey("rebase", name)} {
			if slotOf(key) != slotOf(name) {
				t.Errorf("%q of %q is in slot %d, not %d", key, name, slotOf(key), slotOf(name))
			}
			if seen[key] {
				t.Errorf("%q has two meanings for %q", key, name)
			}
			seen[key] = true
		}
	}
}

func TestNamesThatCannotBeKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prefix, name string }{
		{"", ""}, {"p:", ""}, {"", strings.Repeat("x", driver.MaxName+1)},
		{"", "interlock:{0}:counter"}, {"interlock:", "{0}:counter"},
	} {
		if _, err := (layout{prefix: c.prefix}).key(c.name, "me"); !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
			t.Errorf("prefix %q, name %.30q: %v, want ErrName", c.prefix, c.name, err)
		}
	}
	if _, err := (layout{}).key("a", ""); interlock.Kind(err) != interlock.Bug {
		t.Errorf("an empty owner: %v", err)
	}
}
