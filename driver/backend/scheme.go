package backend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Ability is a set of what a backend can do beside locks.
type Ability uint

// The abilities, each with the interface that a [Connection] which has it implements.
const (
	Values       Ability = 1 << iota // [ValueKeeper]
	Journals                         // [JournalKeeper]
	Guards                           // [Fencer]
	Tables                           // [Database]
	Participants                     // [Preparer]
)

// A Scheme is how the URLs of one kind of backend are read and opened.
type Scheme struct {
	// Kind names the backend, and is the scheme of its URLs: "redis".
	Kind string
	// Also lists further schemes of the same kind: "rediss".
	Also []string
	// Form shows a URL, for errors: "redis://host:port[/number]".
	Form string
	// Port is that of a host without one. A URL of a kind without a Port has no hosts: what
	// stands in their place is a [URL.Namespace].
	Port string
	// Several allows a list of hosts, separated by commas.
	Several bool
	// Options are the names of the query that the client of the backend understands. They
	// may hold secrets.
	Options []string
	// Settings are the names of the query that mean something to the driver, with the values
	// that they may have; nil allows any. They hold no secrets. The settings ttl and prefix
	// are known for every kind.
	Settings map[string][]string
	// Prefixes tells that Connect's locks and values know prefixes. Otherwise a [Backend] puts
	// them before the names.
	Prefixes bool
	// Abilities are those of every connection of this kind.
	Abilities Ability
	// Hint is appended to the error about an option that is not known.
	Hint string
	// MinTTL and MaxTTL bound [LockOptions.TTL], and WholeSeconds tells that it has no
	// fraction of a second.
	MinTTL, MaxTTL time.Duration
	WholeSeconds   bool
	// Check refuses a URL by rules of the kind, with a [*URLError]. It reaches nothing; nil
	// refuses nothing.
	Check func(*URL) error
	// CheckFenced refuses URLs of locks without tokens, with a [*URLError]. It reaches nothing;
	// nil refuses nothing.
	CheckFenced func(*URL) error
	// Connect opens a URL that Check has accepted. The context bounds the opening only.
	Connect func(ctx context.Context, u *URL) (Connection, error)
}

// WithoutTokens is what a CheckFenced returns for the locks of a mode.
func WithoutTokens(mode string) error {
	return &URLError{"locks of ?mode=" + mode + " have no token, so that no guard can refuse what a late holder writes: " +
		"they can be listed, shown and released here, not taken; leave mode out for locks with tokens"}
}

var (
	mu      sync.RWMutex
	schemes = map[string]*Scheme{}
)

// Register makes URLs of a kind known. Drivers call it in an init function. It panics if a
// scheme is registered twice or has no Connect.
func Register(s Scheme) {
	mu.Lock()
	defer mu.Unlock()
	for _, name := range append([]string{s.Kind}, s.Also...) {
		if name == "" || s.Connect == nil || schemes[name] != nil {
			panic(fmt.Sprintf("backend: scheme %q is registered twice, or cannot be opened", name))
		}
		schemes[name] = &s
	}
}

func schemeOf(name string) *Scheme {
	mu.RLock()
	defer mu.RUnlock()
	return schemes[name]
}

// drivers are the packages that register the schemes of this project.
var drivers = map[string]string{"redis": "redis", "rediss": "redis", "etcd": "etcd", "zookeeper": "zookeeper", "kube": "kube", "consul": "consul",
	"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "memory": "memory"}

// unknown is the error about a scheme that nothing has registered.
func unknown(name string, isURL bool) error {
	mu.RLock()
	defer mu.RUnlock()
	forms := map[string]string{}
	for _, s := range schemes {
		forms[s.Kind] = s.Form
	}
	known := "known are " + strings.Join(slices.Sorted(maps.Values(forms)), ", ")
	switch {
	case !isURL:
		return &URLError{"the backend is not a URL; " + known}
	case drivers[name] != "":
		return &URLError{fmt.Sprintf("no driver for %s:// is part of this program: import _ %q", name,
			"github.com/interlock-dev/interlock/driver/"+drivers[name])}
	}
	return &URLError{fmt.Sprintf("no backend is called %q; %s", name, known)}
}
