package pgproxy

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// connection is a client's connection to the server. One goroutine reads from the client, another
// from the server, and each writes to the other side.
type connection struct {
	proxy  *Proxy
	number int
	client net.Conn
	open   context.Context // ends when the connection is dropped
	end    context.CancelFunc

	mu          sync.Mutex // protects the fields below
	server      net.Conn   // nil: not connected yet
	transaction *transaction
	requests    int   // sent to the server: the start-up, Syncs, simple queries
	answers     int   // ReadyForQuery messages from the server
	plan        *plan // nil: forward all answers
}

// plan says what to do with the answer to a request.
type plan struct {
	action  Action
	request int // counted from 1
}

func newConnection(p *Proxy, number int, client net.Conn) *connection {
	c := &connection{proxy: p, number: number, client: client, transaction: newTransaction(p.words)}
	c.open, c.end = context.WithCancel(context.Background())
	return c
}

// drop closes both sides, by a TCP reset or orderly. It returns false if they were closed before.
func (c *connection) drop(reset bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open.Err() != nil {
		return false
	}
	c.end()
	for _, side := range []net.Conn{c.client, c.server} {
		if side != nil {
			closeConn(side, reset)
		}
	}
	return true
}

// closeConn closes conn, by a TCP reset if reset is set.
func closeConn(conn net.Conn, reset bool) {
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// serve forwards messages in both directions until the connection is dropped.
func (c *connection) serve() {
	defer c.drop(false)
	fromClient := bufio.NewReader(c.client)
	first, err := startup(fromClient, c.client)
	if err != nil || c.dial() != nil {
		return
	}
	c.requests = 1
	if _, err := c.server.Write(first); err != nil {
		return
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		defer c.drop(false)
		c.forwardAnswers()
	})
	c.forwardRequests(fromClient)
	c.drop(false)
	answering.Wait()
}

// dial connects to the server.
func (c *connection) dial() error {
	var dialer net.Dialer
	server, err := dialer.DialContext(c.open, c.proxy.network, c.proxy.address)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open.Err(); err != nil {
		_ = server.Close()
		return err
	}
	c.server = server
	return nil
}

// forwardRequests forwards messages from the client until either side closes.
func (c *connection) forwardRequests(client *bufio.Reader) {
	server := bufio.NewWriter(c.server)
	var m message
	for m.read(client) == nil {
		action, err := c.request(m)
		if err != nil {
			return
		}
		if action.moment == beforeCommit {
			_ = server.Flush() // the messages before the commit
			c.proxy.cut(c, beforeCommit)
			return
		}
		if _, err := server.Write(m.bytes); err != nil {
			return
		}
		if client.Buffered() > 0 && action.moment != afterSend && action.moment != afterExecute {
			continue
		}
		if err := server.Flush(); err != nil {
			return
		}
		switch action.moment {
		case afterSend:
			c.proxy.cut(c, afterSend)
			return
		case afterExecute:
			<-c.open.Done() // later messages are not forwarded
			return
		}
	}
}

// request records a message of the client and returns what to do with it. It returns AfterExecute
// for the message that ends the request, which the server answers.
func (c *connection) request(m message) (Action, error) {
	c.mu.Lock()
	commit, ok, err := c.transaction.follow(m.kind(), m.body())
	request := c.requests + 1
	ends := endsRequest(m.kind())
	if ends {
		c.requests = request
	}
	planned := c.plan
	c.mu.Unlock()
	if err != nil {
		return Pass, err
	}
	if ok && planned == nil {
		commit.Connection = c.number
		action := c.proxy.decide(commit)
		switch action.moment {
		case pass:
			c.proxy.count(pass)
		default: // set before the server gets the commit, so that no part of the answer is forwarded
			planned = &plan{action: action, request: request}
			c.mu.Lock()
			c.plan = planned
			c.mu.Unlock()
		}
		if action.moment == beforeCommit || action.moment == afterSend {
			return action, nil
		}
	}
	if ends && planned != nil && planned.action.moment == afterExecute {
		return AfterExecute, nil
	}
	return Pass, nil
}

// forwardAnswers forwards messages from the server, or follows the plan, until either side closes.
func (c *connection) forwardAnswers() {
	server, client := bufio.NewReader(c.server), bufio.NewWriter(c.client)
	var m message
	var held []byte
	for m.read(server) == nil {
		action := c.answer(m)
		switch {
		case action.moment == pass:
			_, _ = client.Write(m.bytes) // Flush returns its error
			if server.Buffered() > 0 {
				continue
			}
		case action.moment == afterExecute && m.kind() == readyMessage:
			_ = client.Flush() // answers to earlier requests
			c.proxy.cut(c, afterExecute)
			return
		case action.moment == hold:
			held = append(held, m.bytes...)
			if m.kind() != readyMessage {
				break
			}
			_ = client.Flush()
			c.wait(action)
			_, _ = client.Write(held)
			held = nil
			if client.Flush() == nil {
				c.proxy.count(hold)
			}
		}
		if client.Flush() != nil {
			return
		}
	}
}

// answer records a message of the server and returns what to do with it.
func (c *connection) answer(m message) Action {
	c.mu.Lock()
	defer c.mu.Unlock()
	action := Pass
	if c.plan != nil && c.answers+1 >= c.plan.request {
		action = c.plan.action
	}
	if m.kind() == readyMessage {
		c.answers++
		if c.answers == c.requests {
			const idle = 'I'
			c.transaction.synchronize(m.body()[0] != idle)
		}
		if action.moment == hold {
			c.plan = nil
		}
	}
	return action
}

// wait returns when the hold of an answer is over or the connection is dropped.
func (c *connection) wait(action Action) {
	timer := time.NewTimer(action.longest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-action.released:
	case <-c.open.Done():
	}
}
