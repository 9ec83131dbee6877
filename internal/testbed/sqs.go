package testbed

import (
	_ "embed"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

//go:embed testdata/elasticmq/pom.xml
var elasticPOM string

// SQSEmulator starts one ElasticMQ and returns when it serves. It emulates Amazon SQS: a test
// result holds on SQS only where the two agree. Of the emulators tried, it is the only one that
// keeps FIFO groups in order and blocks them while messages are in flight. It accepts any
// credentials and region. It stores queues and messages in memory: a restart loses them. extra are
// lines of its configuration; "rest-sqs.sqs-limits = strict" enforces SQS's limits.
// It takes about two seconds of processor time.
func SQSEmulator(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	jars := Peer(tb, "elasticmq", regexp.MustCompile(`<elasticmq>(.*)</elasticmq>`).FindStringSubmatch(elasticPOM)[1])
	java := onPath(tb, "java", "elasticmq")
	return launch(tb, kind{name: "elasticmq", url: "http://%s", ports: 1, ready: askElasticMQ, archives: true,
		command: func(data string, ports []*port) []string {
			file := filepath.Join(data, "elasticmq.conf")
			lines := append([]string{
				"node-address { host = 127.0.0.1, port = " + ports[0].String() + " }",
				"rest-sqs { bind-hostname = 127.0.0.1, bind-port = " + ports[0].String() + ", sqs-limits = relaxed }",
				"rest-stats.enabled = false", "pekko { loglevel = WARNING, http.parsing.illegal-header-warnings = off }",
			}, extra...)
			// without the file the server does not start, and reports that
			_ = os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
			return append(jvm(java, filepath.Join(jars, "*"), "-Xms64m", "-Xmx256m", "-Dconfig.file="+file), "org.elasticmq.server.Main")
		}}, nil)
}

// askElasticMQ lists the queues, in the older protocol of SQS, which needs no signature.
func askElasticMQ(addr string) error {
	request, err := http.NewRequest(http.MethodGet, "http://"+addr+"/?Action=ListQueues", nil)
	if err == nil {
		_, err = send(request, 5*time.Second, nil, http.StatusOK) // the first answer is slow
	}
	return err
}
