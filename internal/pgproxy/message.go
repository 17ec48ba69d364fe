package pgproxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// message is a message of either side after the start-up: one byte for its kind, four for the
// length of the rest, and the body.
type message struct{ bytes []byte }

// The kinds of messages that the proxy interprets.
const (
	parseMessage    = 'P'
	bindMessage     = 'B'
	executeMessage  = 'E'
	syncMessage     = 'S'
	queryMessage    = 'Q'
	functionMessage = 'F'
	readyMessage    = 'Z' // of the server: ReadyForQuery
)

const headerLength = 5

func (m message) kind() byte   { return m.bytes[0] }
func (m message) body() []byte { return m.bytes[headerLength:] }

// read reads the next message into m.
func (m *message) read(r io.Reader) error {
	m.bytes = slices.Grow(m.bytes[:0], headerLength)[:headerLength]
	if _, err := io.ReadFull(r, m.bytes); err != nil {
		return err
	}
	rest := int(binary.BigEndian.Uint32(m.bytes[1:])) - 4
	if rest < 0 || m.kind() == readyMessage && rest != 1 {
		return errMalformed
	}
	m.bytes = slices.Grow(m.bytes, rest)[:headerLength+rest]
	_, err := io.ReadFull(r, m.bytes[headerLength:])
	return err
}

var errMalformed = errors.New("pgproxy: malformed message")

// endsRequest reports whether the server answers a message of the client with ReadyForQuery.
func endsRequest(kind byte) bool {
	return kind == syncMessage || kind == queryMessage || kind == functionMessage
}

// Codes that a client may send in its first message instead of a protocol version.
const (
	tlsRequest = 80877103
	gssRequest = 80877104
)

// startup reads the first message of a client, which has no byte for its kind. It holds the
// protocol version, or a request to cancel a statement of another connection. Encryption is
// refused.
func startup(r *bufio.Reader, client io.Writer) ([]byte, error) {
	for {
		header, err := r.Peek(4)
		if err != nil {
			return nil, err
		}
		const shortest, longest = 8, 10000 // the limits of the server
		length := binary.BigEndian.Uint32(header)
		if length < shortest || length > longest {
			return nil, errMalformed
		}
		first := make([]byte, length)
		if _, err := io.ReadFull(r, first); err != nil {
			return nil, err
		}
		if code := binary.BigEndian.Uint32(first[4:]); code != tlsRequest && code != gssRequest {
			return first, nil
		}
		if _, err := client.Write([]byte("N")); err != nil {
			return nil, err
		}
	}
}
