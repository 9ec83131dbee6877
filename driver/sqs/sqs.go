// Package sqs delivers the messages of an outbox to Amazon SQS, to FIFO and standard queues.
// Delivery is at least once: after a lost answer the outbox sends a message again with the same id.
// A FIFO queue drops repetitions for five minutes, a standard queue never; consumers drop them
// (guard/once). A standard queue has no order.
//
//	settings, err := config.LoadDefaultConfig(ctx)
//	sink, err := sqs.OpenSink(settings, "*.fifo", nil)
//	relay, err := outbox.Start(ctx, "postgres://127.0.0.1/shop", outbox.Table{}, sink, nil)
//
// The tests run on ElasticMQ, an emulator of SQS, and never on SQS itself. DESIGN.md explains how
// the order of a key survives failures.
package sqs

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Attributes that the sink adds to those of a message's headers. [Decode] reads them.
const (
	AttributeID       = "Interlock-Id"       // percent-encoded
	AttributeKey      = "Interlock-Key"      // percent-encoded; without it the message has no key
	AttributeTopic    = "Interlock-Topic"    // percent-encoded; in a queue of all topics
	AttributeEncoding = "Interlock-Encoding" // of the body: "base64" or "empty"; without it the body is the payload
	AttributeHeaders  = "Interlock-Headers"  // all headers, as a URL query; without it each is an attribute
)

// maxAttributes is how many headers can be attributes: SQS accepts ten, and five are ours.
const maxAttributes = 10 - 5

// encode returns the body and attributes of a message. Every message can be encoded.
func encode(m driver.Message, topic bool) (string, map[string]types.MessageAttributeValue) {
	attributes := map[string]types.MessageAttributeValue{}
	set := func(name, value string) {
		attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(value)}
	}
	set(AttributeID, url.PathEscape(m.ID))
	if m.Key != "" {
		set(AttributeKey, url.PathEscape(m.Key))
	}
	if topic {
		set(AttributeTopic, url.PathEscape(m.Topic))
	}
	if packed := packHeaders(m.Headers); packed != "" {
		set(AttributeHeaders, packed)
	} else {
		for name, value := range m.Headers {
			set(name, value)
		}
	}
	body := string(m.Payload)
	switch {
	case body == "":
		body = " " // SQS rejects an empty body
		set(AttributeEncoding, "empty")
	case !legalText(body):
		body = base64.StdEncoding.EncodeToString(m.Payload)
		set(AttributeEncoding, "base64")
	}
	return body, attributes
}

// packHeaders returns all headers as one value if they cannot be attributes, or "".
func packHeaders(headers map[string]string) string {
	packed, fits := url.Values{}, len(headers) <= maxAttributes
	for name, value := range headers {
		packed.Set(name, value)
		fits = fits && legalAttribute(name) && value != "" && legalText(value)
	}
	if fits {
		return ""
	}
	return packed.Encode()
}

// Decode returns the message that a [Sink] sent. Receive m with all attributes and all system
// attributes. Topic is empty unless the queue has all topics. The id of another sender's message is
// that of SQS, and its key is the message group.
func Decode(m types.Message) (driver.Message, error) {
	out := driver.Message{ID: aws.ToString(m.MessageId), Payload: []byte(aws.ToString(m.Body))}
	own := m.MessageAttributes[AttributeID].StringValue != nil
	if !own {
		out.Key = m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
	}
	for name, a := range m.MessageAttributes {
		if a.StringValue == nil {
			continue // binary: of another sender
		}
		var err error
		switch value := *a.StringValue; {
		case own && name == AttributeID:
			out.ID, err = url.PathUnescape(value)
		case own && name == AttributeKey:
			out.Key, err = url.PathUnescape(value)
		case own && name == AttributeTopic:
			out.Topic, err = url.PathUnescape(value)
		case own && name == AttributeEncoding && value == "empty":
			out.Payload = nil
		case own && name == AttributeEncoding && value == "base64":
			out.Payload, err = base64.StdEncoding.DecodeString(aws.ToString(m.Body))
		case own && name == AttributeEncoding:
			err = fmt.Errorf("unknown encoding %.100q", value)
		case own && name == AttributeHeaders:
			err = unpackHeaders(&out, value)
		default:
			setHeader(&out, name, value)
		}
		if err != nil {
			return driver.Message{}, problem("decode", aws.ToString(m.MessageId), interlock.Definite, fmt.Errorf("attribute %s: %w", name, err))
		}
	}
	return out, nil
}

func unpackHeaders(m *driver.Message, packed string) error {
	headers, err := url.ParseQuery(packed)
	for name, values := range headers {
		setHeader(m, name, values[0])
	}
	return err
}

func setHeader(m *driver.Message, name, value string) {
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	m.Headers[name] = value
}

// token128 returns a valid group or deduplication id, of at most 128 characters: the texts,
// percent-encoded and joined by "/", or a hash if that is longer. Different texts, none of them
// empty, have different ids.
func token128(text ...string) string {
	for i := range text {
		text[i] = url.PathEscape(text[i]) // without "/"
	}
	all := strings.Join(text, "/")
	if len(all) > 128 {
		return "/" + hash(all)
	}
	return all
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// legalText reports whether SQS accepts a text unchanged: characters of XML 1.0.
func legalText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	})
}

// legalAttribute reports whether a header can be an attribute of its name.
func legalAttribute(name string) bool {
	lower := strings.ToLower(name)
	switch {
	case name == "" || len(name) > 256 || strings.Trim(name, ".") != name || strings.Contains(name, ".."),
		strings.HasPrefix(lower, "aws.") || strings.HasPrefix(lower, "amazon."),
		name == AttributeID || name == AttributeKey || name == AttributeTopic || name == AttributeEncoding || name == AttributeHeaders:
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !alphanumeric(r) && r != '_' && r != '-' && r != '.' })
}

// legalQueue reports whether a queue can have a name.
func legalQueue(name string) bool {
	base := strings.TrimSuffix(name, fifo)
	return base != "" && len(name) <= 80 && !strings.ContainsFunc(base, func(r rune) bool { return !alphanumeric(r) && r != '_' && r != '-' })
}

// fifo ends the name of every FIFO queue, and of no other.
const fifo = ".fifo"

func alphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: "sqs", Name: name, Kind: kind, Err: err}
}

// Codes of errors, in both protocols of SQS. later: SQS stored nothing, and the cause is
// temporary or an operator can remove it. refused: SQS rejects the message itself.
var (
	later = map[string]bool{
		"QueueDoesNotExist": true, "AWS.SimpleQueueService.NonExistentQueue": true, "QueueDeletedRecently": true,
		"AccessDenied": true, "AccessDeniedException": true, "InvalidClientTokenId": true, "UnrecognizedClientException": true,
		"InvalidSecurity": true, "SignatureDoesNotMatch": true, "InvalidSignatureException": true, "ExpiredToken": true,
		"ExpiredTokenException": true, "MissingAuthenticationToken": true, "IncompleteSignature": true, "OptInRequired": true,
		"RequestThrottled": true, "ThrottlingException": true, "Throttling": true, "OverLimit": true,
		"KmsAccessDenied": true, "KmsDisabled": true, "KmsInvalidKeyUsage": true, "KmsInvalidState": true, "KmsNotFound": true,
		"KmsOptInRequired": true, "KmsThrottled": true,
		"KMS.AccessDeniedException": true, "KMS.DisabledException": true, "KMS.InvalidKeyUsageException": true, "KMS.InvalidStateException": true,
		"KMS.NotFoundException": true, "KMS.OptInRequired": true, "KMS.ThrottlingException": true,
	}
	refused = map[string]bool{
		"InvalidMessageContents": true, "InvalidAttributeValue": true, "InvalidAttributeName": true, "InvalidParameterValue": true,
		"InvalidParameterCombination": true, "MissingParameter": true, "BatchRequestTooLong": true,
		"AWS.SimpleQueueService.BatchRequestTooLong": true, "UnsupportedOperation": true, "AWS.SimpleQueueService.UnsupportedOperation": true,
		"ValidationException": true, "ValidationError": true,
	}
)

// classify returns the kind of an error of the client. Only a code in refused is Definite;
// without an answer the message may have arrived.
func classify(err error) interlock.ErrorKind {
	var answer smithy.APIError
	var dial *net.OpError
	switch {
	case errors.As(err, &answer):
		return classifyCode(answer.ErrorCode())
	case errors.As(err, &dial) && dial.Op == "dial":
		return interlock.Retryable
	}
	return classifyCode("") // unknown
}

func classifyCode(code string) interlock.ErrorKind {
	switch {
	case later[code]:
		return interlock.Retryable
	case refused[code]:
		return interlock.Definite
	}
	return interlock.Uncertain
}
