package lanes

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Defaults of the options of queues.
const (
	DefaultWindow = 1000
	DefaultBytes  = 32 << 20
	DefaultDrain  = 10 * time.Second
)

// ParseURL returns the parts of SCHEME://host:port[,host:port…][/rest]. legal reports whether rest is
// valid, unless it is empty.
func ParseURL(scheme, text string, legal func(rest string) bool) (hosts []string, rest string, err error) {
	text, ok := strings.CutPrefix(text, scheme+"://")
	list, rest, _ := strings.Cut(text, "/")
	switch {
	case !ok:
		return nil, "", fmt.Errorf(`the URL does not begin with "%s://"`, scheme)
	case strings.Contains(list, "@"):
		return nil, "", errors.New("the URL has user information; set credentials and TLS in the option Client")
	case strings.ContainsAny(text, "?#"):
		return nil, "", errors.New("the URL has options; there are none")
	case rest != "" && !legal(rest):
		return nil, "", fmt.Errorf("%.300q is not a valid name", rest)
	}
	hosts = strings.Split(list, ",")
	for _, host := range hosts {
		if name, port, err := net.SplitHostPort(host); err != nil || name == "" || port == "" {
			return nil, "", fmt.Errorf("%.300q is not host:port", host)
		}
	}
	return hosts, rest, nil
}

// CheckLimits fills in the defaults of options of a queue, and rejects those that are not above zero.
func CheckLimits(drain *time.Duration, window, bytes *int) error {
	*drain, *window, *bytes = cmp.Or(*drain, DefaultDrain), cmp.Or(*window, DefaultWindow), cmp.Or(*bytes, DefaultBytes)
	if *drain < 0 || *window < 1 || *bytes < 1 {
		return fmt.Errorf("options Drain %v, Window %d and Bytes %d must be above zero", *drain, *window, *bytes)
	}
	return nil
}

// CheckJoin checks the arguments of Join. legal says whether the name is valid.
func CheckJoin(name string, legal bool, o driver.QueueOptions) error {
	if err := driver.CheckText("an owner", o.Owner, 0, 255); err != nil {
		return err
	}
	if !legal {
		return fmt.Errorf("%w: %.300q is not a valid name of a queue", interlock.ErrName, name)
	}
	if o.Lease < 100*time.Millisecond || o.Lease > time.Hour {
		return fmt.Errorf("lease %v: 100 ms to 1 h are possible", o.Lease)
	}
	return nil
}

// IsName reports whether a text is one or more letters, digits, ".", "_" and "-".
func IsName(text string) bool {
	for _, r := range text {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", r) {
			return false
		}
	}
	return text != ""
}
