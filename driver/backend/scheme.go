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

// Ability is a set of a backend's features beside locks.
type Ability uint

// The abilities, each with the interface of the [Connection] that implements it.
const (
	Values       Ability = 1 << iota // [ValueKeeper]
	Journals                         // [JournalKeeper]
	Guards                           // [Fencer]
	Tables                           // [Database]
	Participants                     // [Preparer]
)

// A Scheme defines how URLs of one kind of backend are parsed and opened.
type Scheme struct {
	// Kind names the backend, and is the scheme of its URLs: "redis".
	Kind string
	// Also lists further schemes of the same kind: "rediss".
	Also []string
	// Form shows a URL, for errors: "redis://host:port[/number]".
	Form string
	// Port is the default port of a host. URLs of a kind without a Port have no hosts, but a
	// [URL.Namespace] in their place.
	Port string
	// Several allows a list of hosts, separated by commas.
	Several bool
	// Options are the query parameters for the backend's client. They may contain secrets.
	Options []string
	// Settings are the query parameters for the driver, with their allowed values; nil allows
	// any. They contain no secrets. Every kind has the settings ttl and prefix.
	Settings map[string][]string
	// Prefixes reports that Connect's locks and values support prefixes. Otherwise a [Backend]
	// adds them to the names.
	Prefixes bool
	// Abilities are the features of every connection of this kind.
	Abilities Ability
	// Hint is appended to the error about an unknown option, after a semicolon.
	Hint string
	// MinTTL and MaxTTL bound [LockOptions.TTL], and WholeSeconds forbids a fraction of a
	// second.
	MinTTL, MaxTTL time.Duration
	WholeSeconds   bool
	// Check rejects a URL by rules of the kind, with a [*URLError]. It does no I/O; nil accepts
	// all.
	Check func(*URL) error
	// CheckFenced rejects URLs of locks without tokens, with a [*URLError]. It does no I/O; nil
	// accepts all.
	CheckFenced func(*URL) error
	// Connect opens a URL that Check has accepted. The context bounds the opening only.
	Connect func(ctx context.Context, u *URL) (Connection, error)
}

// WithoutTokens returns the error of CheckFenced for the locks of a mode.
func WithoutTokens(mode string) error {
	return &URLError{"locks of ?mode=" + mode + " have no token, so no guard can reject a stale holder's writes: " +
		"they can be listed, shown and released here, not acquired; omit mode for locks with tokens"}
}

var (
	mu      sync.RWMutex
	schemes = map[string]*Scheme{}
)

// Register adds a scheme for URLs. Drivers call it in an init function. It panics if a scheme
// is registered twice or has no Connect.
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

// drivers lists the packages that register the schemes of this project.
var drivers = map[string]string{"redis": "redis", "rediss": "redis", "etcd": "etcd", "zookeeper": "zookeeper", "kube": "kube", "consul": "consul",
	"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "memory": "memory"}

// unknown returns the error about a scheme that is not registered.
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
