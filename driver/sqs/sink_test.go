package sqs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// settings of a client that does not keep connections beyond its test.
func settings(t *testing.T, addr string) aws.Config {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return aws.Config{Region: "us-east-1", BaseEndpoint: aws.String("http://" + addr), HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")}
}

// create creates a queue unless it exists.
func create(ctx context.Context, client *sqs.Client, name string) (*string, error) {
	o := &sqs.CreateQueueInput{QueueName: &name}
	if strings.HasSuffix(name, fifo) {
		o.Attributes = map[string]string{"FifoQueue": "true"}
	}
	out, err := client.CreateQueue(ctx, o)
	if err != nil {
		return nil, err
	}
	return out.QueueUrl, nil
}

// drain receives and deletes messages until the queue has none. An answer can be empty although the
// queue has messages; then drain reads the queue's attributes. Messages of a FIFO queue are in the
// order of acceptance.
func drain(ctx context.Context, client *sqs.Client, queue *string) (all []driver.Message, err error) {
	type numbered struct {
		driver.Message
		number int
	}
	var received []numbered
	for {
		out, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: queue, MaxNumberOfMessages: 10,
			MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"}})
		if err != nil {
			return nil, err
		}
		if len(out.Messages) == 0 {
			if n, err := available(ctx, client, queue); err != nil {
				return nil, err
			} else if n > 0 {
				continue
			}
			slices.SortStableFunc(received, func(a, b numbered) int { return a.number - b.number })
			for _, m := range received {
				all = append(all, m.Message)
			}
			return all, nil
		}
		for _, raw := range out.Messages {
			m, err := Decode(raw)
			if err != nil {
				return nil, err
			}
			number, _ := strconv.Atoi(raw.Attributes["SequenceNumber"]) // none: of a standard queue
			received = append(received, numbered{m, number})
			if _, err := client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: queue, ReceiptHandle: raw.ReceiptHandle}); err != nil {
				return nil, err
			}
		}
	}
}

// available returns the number of messages that a queue can deliver, now or after a delay, without those
// in flight.
func available(ctx context.Context, client *sqs.Client, queue *string) (n int, err error) {
	names := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesDelayed}
	out, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: queue, AttributeNames: names})
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		of, err := strconv.Atoi(out.Attributes[string(name)])
		if err != nil {
			return 0, fmt.Errorf("attribute %s: %w", name, err)
		}
		n += of
	}
	return n, nil
}

func TestEmulatorSinkSuite(t *testing.T) {
	t.Parallel()
	drivertest.RunSink(t, drivertest.SinkHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.SinkBackend {
			server := testbed.Shared(t, testbed.SQSEmulator)
			if exclusive {
				server = testbed.SQSEmulator(t)
			}
			stored := &stored{queue: rand.Text() + fifo, client: sqs.NewFromConfig(settings(t, server.Addr()))}
			return paths.At(server, func(t *testing.T, addr string) (drivertest.KeptSink, error) {
				s, err := OpenSink(settings(t, addr), stored.queue, nil)
				return &keptSink{s, stored}, err
			})
		},
		Without: drivertest.Durable, // the emulator loses everything at a restart
	})
}

// stored is one queue with all topics, since few topics of the suite can name a queue.
type stored struct {
	queue  string
	client *sqs.Client // bypasses the paths

	mu   sync.Mutex
	kept []driver.Message
}

// keptSink reads the queue like a consumer, and keeps the messages.
type keptSink struct {
	*Sink
	stored *stored
}

// Publish creates the queue first.
func (s *keptSink) Publish(ctx context.Context, messages []driver.Message) []error {
	// errors are ignored: the server may be down, or the queue may exist
	_, _ = create(ctx, s.stored.client, s.stored.queue)
	return s.Sink.Publish(ctx, messages)
}

func (s *keptSink) Kept(ctx context.Context, topic string) (of []driver.Message, err error) {
	s.stored.mu.Lock()
	defer s.stored.mu.Unlock()
	queue, err := create(ctx, s.stored.client, s.stored.queue)
	if err != nil {
		return nil, err
	}
	some, err := drain(ctx, s.stored.client, queue)
	if err != nil {
		return nil, err
	}
	s.stored.kept = append(s.stored.kept, some...)
	for _, m := range s.stored.kept {
		if m.Topic == topic {
			of = append(of, m)
		}
	}
	return of, nil
}

// TestEmulatorOrderOfKeys: a FIFO queue has the messages of a key once and in order, while the path to
// the emulator breaks repeatedly. A message without an answer is sent again, as by a relay.
func TestEmulatorOrderOfKeys(t *testing.T) {
	t.Parallel()
	server := testbed.Shared(t, testbed.SQSEmulator)
	client := sqs.NewFromConfig(settings(t, server.Addr()))
	topic := rand.Text() // a queue forgets ids only after five minutes
	queue, err := create(t.Context(), client, topic+fifo)
	testbed.OK(t, err)
	path := testbed.NewProxy(t, server.Addr())
	opened, err := OpenSink(settings(t, path.Addr()), "*"+fifo, nil)
	testbed.OK(t, err)
	sink := &watched{Sink: opened}
	drivertest.SinkOrder{Sink: sink, Topic: topic, Keys: 12, Rounds: 20, Each: 3, Fail: func(reach func(int)) {
		for _, at := range []int{6, 11} {
			reach(at)
			lost := sink.uncertain.Load()
			path.DropReplies()
			testbed.Eventually(t, "an answer is lost", time.Minute, func() bool { return sink.uncertain.Load() > lost })
			path.Heal()
		}
	}, Read: func(ctx context.Context) ([]driver.Message, error) { return drain(ctx, client, queue) }}.Check(t)
}

// watched counts unknown outcomes.
type watched struct {
	driver.Sink
	uncertain atomic.Int32
}

func (s *watched) Publish(ctx context.Context, messages []driver.Message) []error {
	answers := s.Sink.Publish(ctx, messages)
	for _, err := range answers {
		if err != nil && interlock.Kind(err) == interlock.Uncertain {
			s.uncertain.Add(1)
		}
	}
	return answers
}

// TestEmulatorRefusals: the rejection of a message itself is Definite, affects no other key, and
// holds back its own. A missing queue is not Definite.
func TestEmulatorRefusals(t *testing.T) {
	t.Parallel()
	server := testbed.SQSEmulator(t, "rest-sqs.sqs-limits = strict")
	client := sqs.NewFromConfig(settings(t, server.Addr()))
	queue, err := create(t.Context(), client, "small"+fifo)
	testbed.OK(t, err)
	sink, err := OpenSink(settings(t, server.Addr()), "*"+fifo, nil)
	testbed.OK(t, err)
	large := make([]byte, 300_000) // the emulator refuses more than 256 KiB
	for name, c := range map[string]struct {
		m    driver.Message
		want interlock.ErrorKind
	}{
		"no queue":              {driver.Message{ID: "1", Topic: "nowhere"}, interlock.Retryable},
		"larger than a queue":   {driver.Message{ID: "2", Topic: "small", Payload: large}, interlock.Definite},
		"larger than a request": {driver.Message{ID: "3", Topic: "small", Payload: make([]byte, 1<<20)}, interlock.Definite},
		"space":                 {driver.Message{ID: "4", Topic: "a b"}, interlock.Definite},
		"long name":             {driver.Message{ID: "5", Topic: strings.Repeat("a", 76)}, interlock.Definite},
		"no id":                 {driver.Message{Topic: "small"}, interlock.Bug},
	} {
		c.m.Key = name
		behind := driver.Message{ID: "behind", Topic: c.m.Topic, Key: name}
		beside := driver.Message{ID: "beside " + name, Topic: "small", Key: "beside"}
		answers := sink.Publish(t.Context(), []driver.Message{c.m, behind, beside})
		if answers[0] == nil || interlock.Kind(answers[0]) != c.want || !errors.Is(answers[1], driver.ErrNotSent) || answers[2] != nil {
			t.Errorf("%s: %v (%v), behind it %v, beside it %v", name, answers[0], interlock.Kind(answers[0]), answers[1], answers[2])
		}
	}
	all, err := drain(t.Context(), client, queue)
	if err != nil || len(all) != 6 {
		t.Errorf("%d messages, %v", len(all), err)
	}
}

// TestEmulatorRequests: ten keys share a request, and the messages of one key do not.
func TestEmulatorRequests(t *testing.T) {
	t.Parallel()
	server := testbed.Shared(t, testbed.SQSEmulator)
	client := sqs.NewFromConfig(settings(t, server.Addr()))
	for _, name := range []string{rand.Text() + fifo, rand.Text()} {
		queue, err := create(t.Context(), client, name)
		testbed.OK(t, err)
		var requests atomic.Int32
		counted := settings(t, server.Addr())
		counted.HTTPClient = counter{counted.HTTPClient, &requests}
		sink, err := OpenSink(counted, name, nil)
		testbed.OK(t, err)
		publish := func(want int32, messages ...driver.Message) {
			t.Helper()
			requests.Store(0)
			for _, err := range sink.Publish(t.Context(), messages) {
				if err != nil {
					t.Error(err)
				}
			}
			if n := requests.Load(); n != want {
				t.Errorf("%s: %d requests, want %d", name, n, want)
			}
		}
		publish(2, driver.Message{ID: "0", Topic: "t"}) // the first also reads the URL
		var keys, one, large []driver.Message
		for i := range 20 {
			keys = append(keys, driver.Message{ID: fmt.Sprint("k", i), Topic: "t", Key: fmt.Sprint(i)})
		}
		for i := range 3 {
			one = append(one, driver.Message{ID: fmt.Sprint("o", i), Topic: "t", Key: "one"})
			large = append(large, driver.Message{ID: fmt.Sprint("l", i), Topic: "t", Payload: bytes.Repeat([]byte("x"), 400_000)})
		}
		publish(2, keys...)
		publish(3, one...)
		publish(2, large...)
		if all, err := drain(t.Context(), client, queue); err != nil || len(all) != 27 {
			t.Errorf("%s: %d messages, %v", name, len(all), err)
		}
	}
}

type counter struct {
	aws.HTTPClient
	n *atomic.Int32
}

func (c counter) Do(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.HTTPClient.Do(r)
}

// TestEmulatorForeignMessage: a message of another sender can be decoded, and one of ours has all its parts.
func TestEmulatorForeignMessage(t *testing.T) {
	t.Parallel()
	server := testbed.Shared(t, testbed.SQSEmulator)
	client := sqs.NewFromConfig(settings(t, server.Addr()))
	queue, err := create(t.Context(), client, rand.Text()+fifo)
	testbed.OK(t, err)
	sent, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: aws.String("body"), MessageGroupId: aws.String("group"), MessageDeduplicationId: aws.String("1"),
		MessageAttributes: map[string]types.MessageAttributeValue{"a": {DataType: aws.String("String"), StringValue: aws.String("b")}, AttributeKey: {DataType: aws.String("String"), StringValue: aws.String("%")}}})
	testbed.OK(t, err)
	all, err := drain(t.Context(), client, queue)
	want := map[string]string{"a": "b", AttributeKey: "%"}
	if err != nil || len(all) != 1 || all[0].ID != *sent.MessageId || all[0].Key != "group" || string(all[0].Payload) != "body" || !maps.Equal(all[0].Headers, want) {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestEncode: every message can be encoded for SQS, and decoded.
func TestEncode(t *testing.T) {
	many := map[string]string{}
	for i := range 20 {
		many[fmt.Sprint("name", i)] = fmt.Sprint(i)
	}
	odd := "\x00\xff é%/ +&=\n"
	for _, m := range []driver.Message{
		{ID: "1"},
		{ID: odd, Key: odd, Topic: odd, Payload: []byte(odd), Headers: map[string]string{odd: odd, "": ""}},
		{ID: "2", Key: strings.Repeat("k", 255), Payload: []byte("text\ttext\r\n"), Headers: many},
		{ID: "3", Headers: map[string]string{"AWS.TraceHeader": "x"}}, {ID: "4", Headers: map[string]string{AttributeKey: "x", "a..b": "y"}},
		{ID: "5", Headers: map[string]string{"Interlock-Token": "7", "traceparent": "00-01"}, Payload: []byte{}}, {ID: "6", Payload: []byte(" ")},
	} {
		body, attributes := encode(m, true)
		if body == "" || !legalText(body) || len(attributes) > 10 {
			t.Errorf("%q: body %q, %d attributes", m.ID, body, len(attributes))
		}
		for name, a := range attributes {
			if *a.StringValue == "" && name != AttributeTopic || !legalText(*a.StringValue) || strings.ContainsAny(name, " %") {
				t.Errorf("%q: attribute %q is %q", m.ID, name, *a.StringValue)
			}
		}
		got, err := Decode(types.Message{Body: &body, MessageAttributes: attributes})
		if err != nil || got.ID != m.ID || got.Key != m.Key || got.Topic != m.Topic || !bytes.Equal(got.Payload, m.Payload) || !maps.Equal(got.Headers, m.Headers) {
			t.Errorf("%+v became %+v, %v", m, got, err)
		}
	}
	for name, value := range map[string]string{AttributeID: "%", AttributeEncoding: "zip", AttributeHeaders: "%zz"} {
		_, attributes := encode(driver.Message{ID: "1", Payload: []byte("x")}, false)
		attributes[name] = types.MessageAttributeValue{StringValue: &value}
		if m, err := Decode(types.Message{Body: aws.String("x"), MessageAttributes: attributes}); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("%s %q: %+v, %v", name, value, m, err)
		}
	}
}

// TestGroups: different keys and ids have different groups, of valid characters.
func TestGroups(t *testing.T) {
	seen := map[string]string{}
	for _, text := range []string{"a", "A", "%", "%25", "é", "a b", strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("é", 60), hash(strings.Repeat("x", 129)), "/" + hash("x"), "?" + hash("x")} {
		g := token128(text)
		if was, ok := seen[g]; ok || g == "" || len(g) > 128 || strings.ContainsFunc(g, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q is %q, as is %q", text, g, was)
		}
		seen[g] = text
	}
}

func TestSinkNames(t *testing.T) {
	for _, name := range []string{"", "**", ".fifo", "a b", "a/*", "x.y", strings.Repeat("x", 81)} {
		if _, err := OpenSink(aws.Config{Region: "r"}, name, nil); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, o := range []*SinkOptions{{MaxBytes: 1}, {MaxBytes: 2 << 20}, {MaxBytes: -1}} {
		if _, err := OpenSink(aws.Config{Region: "r"}, "*", o); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := OpenSink(aws.Config{}, "*", nil); interlock.Kind(err) != interlock.Bug || err == nil {
		t.Errorf("no region: %v", err)
	}
}

// TestPartialFailure: each entry of an answer has its own kind, and a missing entry is Uncertain.
func TestPartialFailure(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), "GetQueueUrl") {
			fmt.Fprint(w, `{"QueueUrl":"http://`+r.Host+`/1/q"}`)
			return
		}
		fmt.Fprint(w, `{"Successful":[{"Id":"0","MessageId":"m","MD5OfMessageBody":"7215ee9c7d9dc229d2921a40e899ec5f"},{"Id":"other","MessageId":"m","MD5OfMessageBody":"x"}],
			"Failed":[{"Id":"1","Code":"InternalError","SenderFault":false},{"Id":"2","Code":"InvalidMessageContents","SenderFault":true},{"Id":"3","Code":"RequestThrottled","SenderFault":true}]}`)
	}))
	defer server.Close()
	config := settings(t, server.Listener.Addr().String())
	sink, err := OpenSink(config, "q", nil)
	testbed.OK(t, err)
	sink.client = sqs.NewFromConfig(config, func(o *sqs.Options) { o.DisableMessageChecksumValidation = true })
	var messages []driver.Message
	for i := range 5 {
		messages = append(messages, driver.Message{ID: fmt.Sprint(i), Topic: "t"})
	}
	answers := sink.Publish(t.Context(), messages)
	for i, want := range []interlock.ErrorKind{0, interlock.Uncertain, interlock.Definite, interlock.Retryable, interlock.Uncertain} {
		if i == 0 && answers[i] != nil || i > 0 && (answers[i] == nil || interlock.Kind(answers[i]) != want) {
			t.Errorf("message %d: %v (%v), want %v", i, answers[i], interlock.Kind(answers[i]), want)
		}
	}
}

// TestUnknownOutcome: only listed codes are Definite, and only unsent messages are Retryable.
func TestUnknownOutcome(t *testing.T) {
	code := func(c string) error { return fmt.Errorf("x: %w", &smithy.GenericAPIError{Code: c}) }
	for _, c := range []struct {
		err  error
		want interlock.ErrorKind
	}{
		{code("InvalidMessageContents"), interlock.Definite}, {code("QueueDoesNotExist"), interlock.Retryable}, {code("AccessDenied"), interlock.Retryable},
		{code("InternalFailure"), interlock.Uncertain}, {code("ServiceUnavailable"), interlock.Uncertain}, {code("New"), interlock.Uncertain},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, interlock.Retryable}, {&net.OpError{Op: "read", Err: errors.New("reset")}, interlock.Uncertain},
		{context.DeadlineExceeded, interlock.Uncertain},
	} {
		if got := classify(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

// TestCodeOfTheOtherProtocol: SQS sends the code of the query protocol in a header, and the client returns that one.
func TestCodeOfTheOtherProtocol(t *testing.T) {
	var shape, code string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		if strings.HasSuffix(r.Header.Get("X-Amz-Target"), "GetQueueUrl") {
			fmt.Fprint(w, `{"QueueUrl":"http://`+r.Host+`/1/q"}`)
			return
		}
		w.Header().Set("X-Amzn-Query-Error", code+";Sender")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"__type":"com.amazonaws.sqs#`+shape+`","message":"why"}`)
	}))
	defer server.Close()
	sink, err := OpenSink(settings(t, server.Listener.Addr().String()), "q", nil)
	testbed.OK(t, err)
	for _, codes := range [][2]string{
		{"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"}, {"KmsAccessDenied", "KMS.AccessDeniedException"},
		{"KmsDisabled", "KMS.DisabledException"}, {"KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException"}, {"KmsInvalidState", "KMS.InvalidStateException"},
		{"KmsNotFound", "KMS.NotFoundException"}, {"KmsOptInRequired", "KMS.OptInRequired"}, {"KmsThrottled", "KMS.ThrottlingException"},
	} {
		shape, code = codes[0], codes[1]
		if err := sink.Publish(t.Context(), []driver.Message{{ID: "1", Topic: "t"}})[0]; err == nil || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%s: %v (%v), want %v", shape, err, interlock.Kind(err), interlock.Retryable)
		}
	}
}
