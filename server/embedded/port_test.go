package embedded

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

// A free port may be taken by another program before the node listens on it.
func TestPortTakenMeanwhile(t *testing.T) {
	taken := &AddressError{Listen: "it", Err: fmt.Errorf("listen: %w", syscall.EADDRINUSE)}
	other := errors.New("other")
	for name, c := range map[string]struct {
		listen string
		errs   []error // of each start
		want   error
	}{
		"free":          {"127.0.0.1:0", []error{nil}, nil},
		"taken twice":   {"127.0.0.1:0", []error{taken, taken, nil}, nil},
		"always taken":  {"127.0.0.1:0", []error{taken, taken, taken, taken, taken}, taken},
		"other failure": {"127.0.0.1:0", []error{other}, other},
		"chosen port":   {"127.0.0.1:7", []error{taken}, taken},
	} {
		t.Run(name, func(t *testing.T) {
			starts := 0
			err := onPort(c.listen, func(listen string) error {
				if listen == "127.0.0.1:0" {
					t.Error("the port was not replaced")
				}
				starts++
				return c.errs[starts-1]
			})
			if !errors.Is(err, c.want) || starts != len(c.errs) {
				t.Errorf("%v after %d starts", err, starts)
			}
		})
	}
}
