package failure_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/failure"
)

func TestAddressesAreShownWithoutSecrets(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"http://u:s3cret@x:1/y?s3cret=1#s3cret": "http://x:1/y?…",
		"http://x/y?":                           "http://x/y?…",
		"http://x/y":                            "http://x/y",
		"http://u:s3cret/@x":                    "an address that cannot be read",
		"http:u:s3cret@x":                       "an address that cannot be read",
	} {
		if got := failure.RedactURL(address); got != want {
			t.Errorf("RedactURL(%q) = %q, not %q", address, got, want)
		}
	}
	why := errors.New("no route")
	err := failure.RedactError(&url.Error{Op: "Post", URL: "http://u:s3cret@x/y?s3cret", Err: why})
	if strings.Contains(err.Error(), "s3cret") || !errors.Is(err, why) {
		t.Errorf("a client's error is %v", err)
	}
	_, err = url.Parse(strings.Join([]string{"http:", "", "u:s3cret", "@x"}, "/"))
	if err := failure.RedactError(err); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a parser's error is %v", err)
	}
	if failure.RedactError(why) != why {
		t.Error("another error has changed")
	}
}
