package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestValues(t *testing.T) {
	t.Parallel()
	shared := EmptyServer(t)
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			return paths.At(server, func(t *testing.T, addr string) (driver.Values, error) {
				return NewValues(operator(t, urlAt(addr)), "public."+namespace+"_limits"), nil
			})
		},
	})
}

func TestKeyValues(t *testing.T) {
	t.Parallel()
	shared := EmptyServer(t)
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			return paths.At(server, func(t *testing.T, addr string) (driver.KeyValues, error) {
				return NewKeyValues(operator(t, urlAt(addr)), "public."+namespace+"_kv"), nil
			})
		},
	})
}

// TestLongTableNames: Postgres cuts names above 63 bytes, so two stores would be one.
func TestLongTableNames(t *testing.T) {
	t.Parallel()
	pool := operator(t, urlAt(EmptyServer(t).Addr()))
	want := func(table string, err error, valid bool) {
		t.Helper()
		if valid && err != nil || !valid && (interlock.Kind(err) != interlock.Bug || !errors.Is(err, interlock.ErrName)) {
			t.Errorf("a name of %d bytes: %v", len(table), err)
		}
	}
	for _, length := range []int{54, 55, 62, 63, 64} {
		table, other := strings.Repeat("t", length), strings.Repeat("t", length-1)+"v"
		kv := NewKeyValues(pool, "public."+table)
		_, err := kv.Swap(t.Context(), driver.Swap{Key: table, Value: []byte("x")})
		want(table, err, length <= 62)
		_, err = kv.Get(t.Context(), table)
		want(table, err, length <= 62)
		_, err = NewValues(pool, "public."+other).Get(t.Context(), table)
		want(other, err, length <= 63)
	}
}

func TestNotifierSuite(t *testing.T) {
	t.Parallel()
	shared := EmptyServer(t)
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.NotifierBackend {
			server, _ := serverFor(t, shared, exclusive)
			name := t.Name()
			channel := `it's a "` + name[strings.LastIndexByte(name, '/')+1:]
			return paths.At(server, func(t *testing.T, addr string) (driver.Notifier, error) {
				return NewNotifier(configOf(t, urlAt(addr)), channel, nil)
			})
		},
	})
}
