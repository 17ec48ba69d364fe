// Package etcdtest runs members of etcd as child processes of a test binary, on loopback, and tests
// the store of package etcd on them.
//
// TestMain calls [Child] first, which runs the member if the process is one:
//
//	func TestMain(m *testing.M) {
//		etcdtest.Child()
//		os.Exit(m.Run())
//	}
package etcdtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// variable names the environment variable that makes a process a member.
const variable = "PAWL_ETCDTEST_MEMBER"

// Options says how the members of a cluster are started. The zero value is etcd's default.
type Options struct {
	// MaxTxnOps is --max-txn-ops.
	MaxTxnOps uint
	// Quota is --quota-backend-bytes.
	Quota int64
	// NoSync is --unsafe-no-fsync: what members acknowledge survives their end, but not that of the machine.
	NoSync bool
	// Certificate, Key and Authority are files that make clients use TLS. Clients need a certificate
	// of the authority.
	Certificate, Key, Authority string
	// PeerLink returns the address under which the other members reach a member. Nil means its own.
	PeerLink func(address string) string `json:"-"`
}

// Member is one member of a cluster.
type Member struct {
	Name string
	// Dir holds its data.
	Dir string
	// Client and Peer are the addresses where it listens, and Advertised is where other members
	// reach it.
	Client, Peer, Advertised string
	// Initial are all members, as in --initial-cluster, and Joins says that the cluster exists.
	Initial string
	Joins   bool
	Options Options

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// Child runs a member if this process is one, and does not return then.
func Child() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	if err := run(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run runs the member that text describes until the parent ends.
func run(text string) error {
	var m Member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster = m.Name, m.Dir, m.Initial
	scheme := "http"
	if m.Options.Certificate != "" {
		scheme = "https"
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = m.Options.Certificate, m.Options.Key
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = m.Options.Authority, true
	}
	at := func(scheme, address string) []url.URL { return []url.URL{{Scheme: scheme, Host: address}} }
	c.ListenClientUrls, c.AdvertiseClientUrls = at(scheme, m.Client), at(scheme, m.Client)
	c.ListenPeerUrls, c.AdvertisePeerUrls = at("http", m.Peer), at("http", m.Advertised)
	c.LogLevel, c.LogOutputs = "error", []string{m.Dir + ".log"}
	c.QuotaBackendBytes, c.UnsafeNoFsync = m.Options.Quota, m.Options.NoSync
	if m.Options.MaxTxnOps > 0 {
		c.MaxTxnOps = m.Options.MaxTxnOps
	}
	if _, err := os.Stat(filepath.Join(m.Dir, "member")); err == nil || m.Joins {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	select {
	case <-server.Server.ReadyNotify():
		fmt.Println("ready")
	case err := <-server.Err():
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
	return nil
}

// Cluster is a number of members.
type Cluster struct {
	Members []*Member
	dir     string
}

// Start starts a cluster of n members. The caller calls Stop.
func Start(n int, options Options) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "etcdtest")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	for range n {
		if _, err := c.add(options); err != nil {
			return nil, err
		}
	}
	for _, m := range c.Members {
		m.Initial = c.initial()
		if err := m.Spawn(); err != nil {
			c.Stop()
			return nil, err
		}
	}
	for _, m := range c.Members {
		if err := m.Ready(); err != nil {
			c.Stop()
			return nil, err
		}
	}
	return c, nil
}

// add adds a member that is not started.
func (c *Cluster) add(options Options) (*Member, error) {
	m := &Member{Name: fmt.Sprint("member", len(c.Members)), Options: options}
	m.Dir = filepath.Join(c.dir, m.Name)
	var err error
	if m.Client, err = free(); err != nil {
		return nil, err
	}
	if m.Peer, err = free(); err != nil {
		return nil, err
	}
	if m.Advertised = m.Peer; options.PeerLink != nil {
		m.Advertised = options.PeerLink(m.Peer)
	}
	c.Members = append(c.Members, m)
	return m, nil
}

// initial returns the value of --initial-cluster.
func (c *Cluster) initial() string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Name+"=http://"+m.Advertised)
	}
	return strings.Join(all, ",")
}

// free returns an address where nothing listens. Its port is outside the range that the kernel uses
// for outgoing connections, so that it is still free when a member starts, or starts again.
func free() (address string, err error) {
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}

// Spawn starts the process of a member that does not run. Ready waits for it.
func (m *Member) Spawn() error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), variable+"="+string(text))
	m.cmd.Stderr = os.Stderr
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	m.out = bufio.NewScanner(out)
	return m.cmd.Start()
}

// Ready waits until the member is part of a cluster with a leader.
func (m *Member) Ready() error {
	if !m.out.Scan() {
		return fmt.Errorf("%s did not start", m.Name)
	}
	return nil
}

// Kill ends the process as kill -9 does.
func (m *Member) Kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// Restart starts a killed member again and waits until it is ready.
func (m *Member) Restart() error {
	if err := m.Spawn(); err != nil {
		return err
	}
	return m.Ready()
}

// Freeze stops the process until Thaw.
func (m *Member) Freeze() error { return m.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen process continue.
func (m *Member) Thaw() error { return m.cmd.Process.Signal(syscall.SIGCONT) }

// Stop ends all members and removes their data.
func (c *Cluster) Stop() {
	for _, m := range c.Members {
		if m.cmd != nil && m.cmd.ProcessState == nil {
			m.Kill()
		}
	}
	_ = os.RemoveAll(c.dir)
}

// Endpoints returns where all members listen for clients.
func (c *Cluster) Endpoints() (all []string) {
	for _, m := range c.Members {
		all = append(all, m.Client)
	}
	return all
}

// NewClient returns a client without TLS. The caller closes it.
func NewClient(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// statusPatience is how long Leader waits for the answer of a member.
const statusPatience = time.Second

// Leader returns the member that at least one other member, or it itself, takes for the leader. It
// waits for one until ctx ends.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	client, err := NewClient(c.Endpoints()...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for ctx.Err() == nil {
		leader := uint64(0)
		ids := make(map[uint64]*Member)
		for _, m := range c.Members {
			one, cancel := context.WithTimeout(ctx, statusPatience)
			status, err := client.Status(one, m.Client)
			cancel()
			if err == nil {
				ids[status.Header.MemberId] = m
				leader = status.Leader
			}
		}
		if m := ids[leader]; m != nil {
			return m, nil
		}
	}
	return nil, errors.Join(errors.New("no leader"), ctx.Err())
}

// Replace removes a killed member and starts a new one in its place.
func (c *Cluster) Replace(ctx context.Context, gone *Member) (*Member, error) {
	var rest []string
	for _, m := range c.Members {
		if m != gone {
			rest = append(rest, m.Client)
		}
	}
	client, err := NewClient(rest...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	members, err := client.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members.Members {
		if m.Name == gone.Name {
			if _, err := client.MemberRemove(ctx, m.ID); err != nil {
				return nil, err
			}
		}
	}
	fresh, err := c.add(gone.Options)
	if err != nil {
		return nil, err
	}
	for i, m := range c.Members {
		if m == gone {
			c.Members = append(c.Members[:i], c.Members[i+1:]...)
			break
		}
	}
	fresh.Name = gone.Name + "new"
	fresh.Dir = filepath.Join(c.dir, fresh.Name)
	fresh.Initial, fresh.Joins = c.initial(), true
	for { // the cluster refuses changes until it has settled
		if _, err = client.MemberAdd(ctx, []string{"http://" + fresh.Advertised}); err == nil || ctx.Err() != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	return fresh, fresh.Restart()
}
