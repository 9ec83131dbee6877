package wire_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/wire"
)

// TestOneTextForEachPass: an encoded pass is decoded unchanged, and no other text is accepted, so
// the compared, signed and logged texts are the same.
func TestOneTextForEachPass(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]wire.Pass{
		"890117171089408;resource=account/42;owner=web-1;remaining=8200": {Token: 890117171089408, Resource: "account/42",
			Owner: "web-1", Remaining: 8200 * time.Millisecond},
		"4096;resource=a": {Token: 4096, Resource: "a"},
		"9223372036854775807;resource=%C3%A4%20%22;owner=%25%3B%3D%0D%0A": {Token: math.MaxInt64, Resource: `ä "`, Owner: "%;=\r\n"},
	} {
		p, err := wire.ParsePass(text)
		if err != nil || p != want || p.String() != text {
			t.Errorf("%q is read as %+v, %v, and written as %q", text, p, err, p)
		}
	}
}

func TestOtherTextsAreMalformed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 513)
	for _, text := range []string{
		"", ";", "4096", "4096;", "4096;resource=", "4096;owner=a", "4095;resource=a", "0;resource=a", "-4096;resource=a",
		"+4096;resource=a", "04096;resource=a", " 4096;resource=a", "4096 ;resource=a", "4096;resource=a ", "4096; resource=a",
		"9223372036854775808;resource=a", "4096.0;resource=a", "4e3;resource=a", "0x1000;resource=a",
		"4096;resource=a;resource=a", "4096;resource=a;resource=b", "4096;owner=b;resource=a", "4096;resource=a;owner=",
		"4096;resource=a;remaining=0", "4096;resource=a;remaining=-1", "4096;resource=a;remaining=01", "4096;resource=a;remaining=1s",
		"4096;resource=a;remaining=86400001", "4096;resource=a;remaining=99999999999999999999", "4096;resource=a;more=1",
		"4096;resource=%61", "4096;resource=%c3%a4", "4096;resource=%", "4096;resource=%0", "4096;resource=%GG", "4096;resource=ä",
		"4096;resource=a%00", "4096;resource=%FF", "4096;resource=a+b", "4096;resource=a;", "4096,resource=a",
		"4096;resource=" + long, "4096;resource=a;owner=" + long, "4096;resource=a\x00", strings.Repeat("4", 9<<10),
	} {
		if p, err := wire.ParsePass(text); err == nil || p != (wire.Pass{}) {
			t.Errorf("%.80q is read as %+v, %v", text, p, err)
		} else if wantReason(t, err, wire.Malformed); len(err.Error()) > 200 || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v (%v)", err, interlock.Kind(err))
		}
	}
}

// FuzzParsePass: any text is rejected, or is the canonical text of its pass.
func FuzzParsePass(f *testing.F) {
	for _, seed := range []string{"4096;resource=account/42;owner=web-1;remaining=8200", "4096;resource=%25;owner=%00", "-1;;=;%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := wire.ParsePass(text)
		if err != nil {
			wantReason(t, err, wire.Malformed)
			return
		}
		again, err := wire.ParsePass(fmt.Sprint(p))
		if p.String() != text || err != nil || again != p || !p.Token.Valid() || p.Resource == "" {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	})
}
