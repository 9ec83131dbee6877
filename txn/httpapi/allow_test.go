package httpapi_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/httpapi"
)

// TestWithin: what is permitted goes on with whole segments of the canonical path.
func TestWithin(t *testing.T) {
	allow, err := httpapi.Within("http://stock.internal/good", "https://10.0.0.7:8443/", "http://[::1]:80/a/")
	ok(t, err)
	for address, want := range map[string]bool{
		"http://stock.internal/good": true, "http://stock.internal/good/": true, "http://stock.internal/good/x?secret=1": true,
		"http://STOCK.internal:80/good/x": true, "http://stock.internal./good": true, "https://10.0.0.7:8443": true, "https://10.0.0.7:8443/x": true,
		"http://[::1]/a/b": true, "http://stock.internal/good/a..b": true, "http://stock.internal/good/a%20b": true,

		"http://stock.internal/goods": false, "http://stock.internal/goo": false, "http://stock.internal/": false, "http://stock.internal": false,
		"https://stock.internal/good": false, "http://stock.internal:8080/good": false, "http://stock.internal.evil.example/good": false,
		"http://[::1]/a": false, "http://[::1]/ab": false, "https://10.0.0.7/x": false,
		"http://stock.internal/good/../bad": false, "http://stock.internal/good/%2e%2e/bad": false, "http://stock.internal/good/..%2fbad": false,
		"http://stock.internal/good;x/../bad": false, "http://stock.internal/good/;/x": false, "http://stock.internal/good/%3b": false,
		`http://stock.internal/good/..\\bad`: false, "http://stock.internal/good/..%5cbad": false, "http://stock.internal/good/%252e%252e/bad": false,
		"http://stock.internal//good": false, "http://stock.internal/good//x": false, "http://stock.internal/good/./x": false, "http://stock.internal/good/%00": false,
	} {
		u, err := url.Parse(address)
		ok(t, err)
		if err := allow(u); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, bad := range []string{"", "stock", "http://stock", "http://u@stock/", "http://stock/?a=b", "http://stock/a/../b", "http://stock/%2f", ":", "http://u:s3cret@stock/", "http://stock/?s3cret"} {
		if _, err := httpapi.Within(bad); interlock.Kind(err) != interlock.Bug || err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
