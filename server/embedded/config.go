package embedded

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"go.etcd.io/etcd/server/v3/embed"
)

// config is a node that is alone and quiet.
func config(dataDir, listen string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "interlock"
	cfg.Dir = dataDir
	cfg.TickMs = uint(heartbeat.Milliseconds())
	cfg.ElectionMs = uint(election.Milliseconds())
	cfg.EnableGRPCGateway = false
	// A page in a browser on this machine reaches loopback, too. No origin is called
	// "none", and a name that a page has pointed at loopback is none of ours.
	cfg.CORS = map[string]struct{}{"none": {}}
	cfg.HostWhitelist = map[string]struct{}{"localhost": {}, "127.0.0.1": {}, "::1": {}, "[::1]": {}}
	if host, _, err := net.SplitHostPort(listen); err == nil {
		cfg.HostWhitelist[host] = struct{}{}
	}

	client := url.URL{Scheme: "http", Host: listen}
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	// No peer ever dials a node that is alone; the name is only for its records.
	peer := url.URL{Scheme: "http", Host: "localhost:0"}
	cfg.ListenPeerUrls = nil
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	return cfg
}

// An AddressError says why a listen address cannot be used.
type AddressError struct {
	Listen string
	Err    error
}

// Error names the address.
func (e *AddressError) Error() string {
	return fmt.Sprintf("embedded: listen on %s: %v", e.Listen, e.Err)
}

// Unwrap gives the reason.
func (e *AddressError) Unwrap() error { return e.Err }

// loopback gives listen with "localhost" made numeric, and refuses what is no
// address or one that other machines could reach.
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
