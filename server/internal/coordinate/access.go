package coordinate

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// reject answers a request that is not served, with the reason.
func reject(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	text, _ := json.Marshal(map[string]string{"error": why, "kind": "definite"})
	_, _ = io.WriteString(w, string(text)+"\n") // fails if the client has disconnected
}

// openPaths are the paths that need no token. They report only whether the service is
// healthy.
var openPaths = []string{"/healthz", "/readyz"}

// requireToken requires a token in a request if there is a file of tokens.
func requireToken(tokens *secretFile, h http.Handler) http.Handler {
	if tokens == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if slices.Contains(openPaths, r.URL.Path) || strings.EqualFold(scheme, "Bearer") && matchesToken(tokens.all(), shown) {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		reject(w, http.StatusUnauthorized, "the request does not show a token of this coordinator, as in Authorization: Bearer …")
	})
}

// matchesToken compares the sum of shown with those of all tokens. The sums have one length, and
// the time of the comparison reveals nothing.
func matchesToken(tokens []string, shown string) bool {
	got, fit := sha256.Sum256([]byte(shown)), 0
	for _, t := range tokens {
		want := sha256.Sum256([]byte(t))
		fit |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return fit == 1
}

// requireHost returns a handler of requests whose Host is an IP address, localhost or one
// of the names. A page that reaches this process through its own name, which it has
// pointed at this address (DNS rebinding), sends that name.
func requireHost(names []string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" && !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, host) }) {
			reject(w, http.StatusMisdirectedRequest, "this coordinator is not called by the Host of the request: add it with --host")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// rejectPages returns a handler that treats every browser page as one of another site. The
// service has no pages, so one of its own origin came through a foreign name that
// resolves to this address.
func rejectPages(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		h.ServeHTTP(w, r)
	})
}

// secretFile has a secret on each line. It is read again after a change, so secrets can be rotated
// without a restart. Add the new one, change its users, and remove the old one.
type secretFile struct {
	path  string
	least int                // bytes of a secret
	check func(string) error // of a secret; nil if any will do

	mu      sync.Mutex
	read    os.FileInfo // at the last read
	looked  time.Time
	secrets []string
	failure string // the last one
	tell    func(error)
}

// openSecrets reads the file; see checkPrivate.
func openSecrets(path string, least int, check func(string) error, tell func(error)) (*secretFile, error) {
	f := &secretFile{path: path, least: least, check: check, tell: tell}
	return f, f.load()
}

// all returns the current secrets. If the file cannot be used, it reports the error once and
// returns the former secrets.
func (f *secretFile) all() []string {
	secrets, err := f.look()
	if err != nil && f.tell != nil {
		f.tell(err) // without the lock, because it may block
	}
	return secrets
}

// look returns the current secrets, and an error that was not reported before.
func (f *secretFile) look() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) <= 100*time.Millisecond { // do not check the file for each of many requests
		return f.secrets, nil
	}
	f.looked = time.Now()
	now, err := os.Stat(f.path)
	if err == nil && !f.unchanged(now) {
		err = f.load()
	}
	former := f.failure
	if f.failure = ""; err != nil {
		f.failure = err.Error()
	}
	if f.failure == former {
		return f.secrets, nil
	}
	return f.secrets, err
}

func (f *secretFile) unchanged(now os.FileInfo) bool {
	return now.ModTime().Equal(f.read.ModTime()) && now.Size() == f.read.Size() && now.Mode() == f.read.Mode() && os.SameFile(now, f.read)
}

func (f *secretFile) load() error {
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	f.read = info
	if err := checkPrivate(f.path, info); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err != nil {
		return err
	}
	secrets := strings.Fields(string(text))
	if len(secrets) == 0 {
		return fmt.Errorf("%s is empty: write a line of %d characters at least, such as by openssl rand -hex 32", f.path, f.least)
	}
	for i, s := range secrets {
		if len(s) < f.least {
			return fmt.Errorf("%s: secret %d has %d characters: make one of %d at least, such as by openssl rand -hex 32", f.path, i+1, len(s), f.least)
		}
		if f.check == nil {
			continue
		}
		if err := f.check(s); err != nil {
			return fmt.Errorf("%s: secret %d: %w", f.path, i+1, err)
		}
	}
	f.secrets = secrets
	return nil
}

// checkPrivate rejects a file of secrets that other users can read or write. The group may
// read a file of root, as with PostgreSQL's keys: Kubernetes mounts secrets as root with the
// group fsGroup and mode 0440.
func checkPrivate(path string, info os.FileInfo) error {
	owner, known := info.Sys().(*syscall.Stat_t)
	if private(info.Mode(), known && owner.Uid == 0) {
		return nil
	}
	return fmt.Errorf("%s can be read or written by other users (%v): chmod 600 %[1]s; if root owns it, 640 or 440 will do", path, info.Mode().Perm())
}

func private(mode os.FileMode, byRoot bool) bool {
	return mode.Perm()&0o077 == 0 || byRoot && mode.Perm()&0o037 == 0
}

// limitedListener is a listener that limits the open connections, in total and per address, and
// closes further ones.
type limitedListener struct {
	net.Listener
	total, each int

	mu   sync.Mutex
	open map[netip.Addr]int
	sum  int
}

func newLimitedListener(l net.Listener, total, each int) *limitedListener {
	return &limitedListener{Listener: l, total: total, each: each, open: map[netip.Addr]int{}}
}

// Accept waits for the next connection within the limits.
func (c *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := address(conn)
		if c.admit(from) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { c.release(from) })}, nil
		}
		_ = conn.Close()
	}
}

func (c *limitedListener) admit(from netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sum >= c.total || c.open[from] >= c.each {
		return false
	}
	c.sum++
	c.open[from]++
	return true
}

func (c *limitedListener) release(from netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum--
	if c.open[from]--; c.open[from] == 0 {
		delete(c.open, from)
	}
}

// address identifies the client of a connection. For IPv6 it is the network, since one machine may
// use all addresses of it.
func address(conn net.Conn) netip.Addr {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if net, err := ip.Prefix(64); err == nil {
			return net.Addr()
		}
	}
	return ip
}

// limitedConn is a connection that counts until it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

// Close closes the connection and ends its count.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
