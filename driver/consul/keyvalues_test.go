package consul

import (
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// large permits the largest value, in base64.
const large = `-hcl=limits { txn_max_req_len = 1048576 }`

func TestKeyValues(t *testing.T) {
	t.Parallel()
	shared := testbed.Consul(t, large)
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			server, prefix := shared, fmt.Sprintf("suite/%d/", namespaces.Add(1))
			if exclusive {
				server = testbed.Consul(t, large)
			}
			return paths.At(server, func(_ *testing.T, addr string) (driver.KeyValues, error) {
				return NewKeyValues(&Options{Address: addr, Prefix: prefix})
			})
		},
	})
}

// TestKeyValuesThatAreTooLarge are refused, Definite, by agents with default limits.
func TestKeyValuesThatAreTooLarge(t *testing.T) {
	k, err := NewKeyValues(&Options{Address: testbed.Shared(t, testbed.Consul).Addr(), Prefix: "large/"})
	testbed.OK(t, err)
	defer k.Close(t.Context())
	if _, err := k.Swap(t.Context(), driver.Swap{Key: "a", Value: []byte(strings.Repeat("x", 380<<10))}); err != nil {
		t.Error(err)
	}
	if _, err := k.Swap(t.Context(), driver.Swap{Key: "b", Value: make([]byte, driver.MaxKeyValue)}); interlock.Kind(err) != interlock.Definite {
		t.Error(err)
	}
}
