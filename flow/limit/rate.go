package limit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseRate parses a GCRA rate of the form COUNT/PERIOD, such as "100/s", "5/1m30s" or "1000/24h". The
// period is a unit or a duration of [time.ParseDuration].
func ParseRate(text string) (Rate, error) {
	count, period, ok := strings.Cut(text, "/")
	n, err := strconv.ParseInt(count, 10, 64)
	if !ok || err != nil {
		return Rate{}, fmt.Errorf("%q is not a rate: use COUNT/PERIOD, such as 100/s or 5/90s", text)
	}
	d, err := time.ParseDuration(period)
	if err != nil {
		if d, err = time.ParseDuration("1" + period); err != nil {
			return Rate{}, fmt.Errorf("%q is not a rate: the period must be a unit (s, m, h) or a duration, such as 90s", text)
		}
	}
	r := Rate{Count: n, Period: d}
	return r, r.Check()
}
