package etcd

import (
	"context"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// A member that is frozen, or cut off without a notice, keeps its connections and answers nothing.
// The client of etcd sends it every third request until gRPC misses a ping, which takes 12 s. So a
// member that has let a request run out of Config.AttemptTimeout is left out for a while. While a
// leader is elected, that can be any member. So at most a minority is left out, and a member that
// works is always among the others.

const (
	// avoidFor is how long a member is left out.
	avoidFor = 10 * time.Second
	// lookupTimeout limits the search for the address of a member.
	lookupTimeout = 500 * time.Millisecond
)

// members decides which members a client uses. Only Open makes one: the client of New is the
// caller's.
type members struct {
	attempt   time.Duration // Config.AttemptTimeout
	endpoints []string      // all members

	mu      sync.Mutex // protects the fields below
	client  *clientv3.Client
	avoided map[string]time.Time // when the member is used again
	timer   *time.Timer          // uses members again
}

// intercept sends one request, and notes the member that let it run out of time.
func (m *members) intercept(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	var at peer.Peer
	began := time.Now()
	err := invoke(ctx, method, request, reply, conn, append(opts, grpc.Peer(&at))...)
	// A caller's context may end earlier, which says nothing about the member.
	if status.Code(err) == codes.DeadlineExceeded && at.Addr != nil && time.Since(began) > m.attempt*9/10 {
		m.avoid(at.Addr.String())
	}
	return err
}

// avoid leaves the member at address out.
func (m *members) avoid(address string) {
	at := slices.IndexFunc(m.endpoints, func(endpoint string) bool { return leadsTo(endpoint, address) })
	if at < 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.avoided[m.endpoints[at]] = time.Now().Add(avoidFor)
	for len(m.avoided) > (len(m.endpoints)-1)/2 {
		oldest := ""
		for endpoint, until := range m.avoided {
			if oldest == "" || until.Before(m.avoided[oldest]) {
				oldest = endpoint
			}
		}
		delete(m.avoided, oldest)
	}
	m.use()
}

// use tells the client which members to use now. The caller holds mu.
func (m *members) use() {
	if m.client == nil { // not opened yet, or closed
		return
	}
	rest, next := []string{}, time.Time{}
	for _, endpoint := range m.endpoints {
		until, avoided := m.avoided[endpoint]
		if !avoided || !until.After(time.Now()) {
			delete(m.avoided, endpoint)
			rest = append(rest, endpoint)
		} else if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	m.client.SetEndpoints(rest...)
	if m.timer != nil {
		m.timer.Stop()
	}
	if !next.IsZero() {
		m.timer = time.AfterFunc(time.Until(next), func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.use()
		})
	}
}

// attach begins to decide for client.
func (m *members) attach(client *clientv3.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = client
}

// detach ends that.
func (m *members) detach() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client = nil; m.timer != nil {
		m.timer.Stop()
	}
}

// leadsTo reports whether the endpoint, with a host name or an address, is that of the address.
func leadsTo(endpoint, address string) bool {
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		endpoint = u.Host
	}
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return false
	}
	wantHost, wantPort, err := net.SplitHostPort(address)
	if err != nil || port != wantPort {
		return false
	}
	if net.ParseIP(host) != nil {
		return net.ParseIP(host).Equal(net.ParseIP(wantHost))
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	found, _ := net.DefaultResolver.LookupHost(ctx, host)
	return slices.Contains(found, wantHost)
}
