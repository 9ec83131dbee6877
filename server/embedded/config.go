package embedded

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"go.etcd.io/etcd/server/v3/embed"
)

// config returns the configuration of a single node that logs little.
func config(dataDir, listen string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "interlock"
	cfg.Dir = dataDir
	cfg.TickMs = uint(heartbeat.Milliseconds())
	cfg.ElectionMs = uint(election.Milliseconds())
	cfg.EnableGRPCGateway = false
	// A page in a browser on this machine reaches loopback, too. No origin is called
	// "none", and a foreign name that resolves to loopback is not in the whitelist.
	cfg.CORS = map[string]struct{}{"none": {}}
	cfg.HostWhitelist = map[string]struct{}{"localhost": {}, "127.0.0.1": {}, "::1": {}, "[::1]": {}}
	if host, _, err := net.SplitHostPort(listen); err == nil {
		cfg.HostWhitelist[host] = struct{}{}
	}

	client := url.URL{Scheme: "http", Host: listen}
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	// A single node has no peers that dial it; the name is only for its records.
	peer := url.URL{Scheme: "http", Host: "localhost:0"}
	cfg.ListenPeerUrls = nil
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	return cfg
}

// AddressError reports why a listen address cannot be used.
type AddressError struct {
	Listen string
	Err    error
}

// Error returns the address and the reason.
func (e *AddressError) Error() string {
	return fmt.Sprintf("embedded: listen on %s: %v", e.Listen, e.Err)
}

// Unwrap returns the reason.
func (e *AddressError) Unwrap() error { return e.Err }

// loopback returns listen with "localhost" made numeric. It rejects an invalid address
// and one that other machines could reach.
func loopback(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", &AddressError{Listen: listen, Err: fmt.Errorf("not of the form host:port, such as 127.0.0.1:7460")}
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.IsLoopback() {
		return "", &AddressError{Listen: listen, Err: fmt.Errorf("only a loopback address is allowed, " +
			"because this etcd has neither passwords nor TLS and would serve anyone who reaches it")}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", &AddressError{Listen: listen, Err: fmt.Errorf("the port must be a number from 0 to 65535")}
	}
	return net.JoinHostPort(ip.String(), port), nil
}
