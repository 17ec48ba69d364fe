package etcdtest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
	"github.com/pawl-go/pawl/persist/etcd/etcdtest"
	"github.com/pawl-go/pawl/persist/etcd/scheme"
	locations "github.com/pawl-go/pawl/persist/open"
)

// create commits a new record.
func create(t *testing.T, store persist.Store, key persist.Key) {
	t.Helper()
	_, err := store.Commit(t.Context(), persist.Commit{ID: "test.1", Writes: []persist.Write{{Key: key, Version: 1, Doc: []byte("1")}}})
	require.NoError(t, err)
}

// endpoints returns those of the shared cluster of one member.
func endpoints(t *testing.T) []string { return cluster(t, 1).Endpoints() }

// An address where nothing listens, or where no member of etcd does, is unavailable in bounded time.
//
// Proves STORE-14.
func TestWrongEndpoints(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for _, address := range []string{silent.Addr().String(), closed.Addr().String()} {
		_, err := etcd.Open(t.Context(), []string{address}, etcd.Config{Timeout: 200 * time.Millisecond, AttemptTimeout: 200 * time.Millisecond})
		require.ErrorIs(t, err, persist.ErrUnavailable)
	}
	_, err = etcd.Open(t.Context(), nil, etcd.Config{})
	require.Error(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = etcd.Open(ended, []string{closed.Addr().String()}, etcd.Config{})
	require.ErrorIs(t, err, context.Canceled)
}

// Prefixes share a cluster without seeing each other, also if one contains the other. A prefix of
// another program or of a newer release is refused.
//
// Proves STORE-9.
func TestPrefixes(t *testing.T) {
	base := fmt.Sprintf("prefixes%d/", places.Add(1))
	key := persist.Key{Kind: "m", ID: "1"}
	for i, prefix := range []string{base, base + "m/", base + "m", base + "clock", base + "m/m"} {
		store, err := etcd.Open(t.Context(), endpoints(t), etcd.Config{Prefix: prefix})
		require.NoError(t, err)
		defer store.Close()
		page, err := store.List(t.Context(), persist.Query{})
		require.NoError(t, err)
		if prefix == base+"m" { // a slash is added
			require.Len(t, page.Records, 1)
			continue
		}
		require.Empty(t, page.Records, "%d", i)
		create(t, store, key)
	}
	client, err := etcdtest.NewClient(endpoints(t)...)
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Put(t.Context(), base+"newer/schema", "2")
	require.NoError(t, err)
	_, err = etcd.Open(t.Context(), endpoints(t), etcd.Config{Prefix: base + "newer/"})
	require.ErrorIs(t, err, persist.ErrNewerSchema)
	_, err = client.Put(t.Context(), base+"other/schema", "public")
	require.NoError(t, err)
	_, err = etcd.Open(t.Context(), endpoints(t), etcd.Config{Prefix: base + "other/"})
	require.ErrorContains(t, err, "belongs to another program")
	_, err = etcd.Open(t.Context(), endpoints(t), etcd.Config{Prefix: base + "missing/", Existing: true})
	require.ErrorIs(t, err, persist.ErrMissingStore)
	found, err := client.Get(t.Context(), base+"missing/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, found.Kvs, "Existing creates nothing")
}

// A store whose keys are removed while it is open says so, and acknowledges nothing.
func TestRemovedKeys(t *testing.T) {
	location := place(t, 1)
	store, err := openAt(t.Context(), location)
	require.NoError(t, err)
	defer store.Close()
	create(t, store, persist.Key{Kind: "k", ID: "1"})
	client, err := etcdtest.NewClient(endpoints(t)...)
	require.NoError(t, err)
	defer client.Close()
	prefix, _, _ := strings.Cut(location, "@")
	_, err = client.Delete(t.Context(), prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = store.Commit(t.Context(), persist.Commit{ID: "test.2", Writes: []persist.Write{{Key: persist.Key{Kind: "k", ID: "2"}, Version: 1, Doc: []byte("1")}}})
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorContains(t, err, "removed")
}

// A cluster with authentication is opened with the right password only, which no error contains.
//
// Proves STORE-12.
func TestCredentials(t *testing.T) {
	c, err := etcdtest.Start(1, etcdtest.Options{})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	address := c.Members[0].Client
	client, err := etcdtest.NewClient(address)
	require.NoError(t, err)
	defer client.Close()
	for _, name := range []string{"root", "chat"} {
		_, err = client.UserAdd(t.Context(), name, "secret-"+name)
		require.NoError(t, err)
		_, err = client.RoleAdd(t.Context(), name)
		require.NoError(t, err)
		_, err = client.UserGrantRole(t.Context(), name, name)
		require.NoError(t, err)
	}
	_, err = client.RoleGrantPermission(t.Context(), "chat", "chat/", clientv3.GetPrefixRangeEnd("chat/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = client.AuthEnable(t.Context())
	require.NoError(t, err)

	schemes := locations.Standard()
	scheme.Add(schemes)
	store, err := schemes.Open(t.Context(), "etcd://chat:secret-chat@"+address+"/chat", locations.Options{})
	require.NoError(t, err)
	defer store.Close()
	key := persist.Key{Kind: "k", ID: "1"}
	create(t, store, key)
	_, err = store.Load(t.Context(), key)
	require.NoError(t, err)

	for _, location := range []string{
		"etcd://chat:secret-wrong@" + address + "/chat",
		"etcd://stranger:secret-wrong@" + address + "/chat",
		"etcd://" + address + "/chat",
		"etcd://chat:secret-chat@" + address + "/elsewhere",
	} {
		_, err := schemes.Open(t.Context(), location, locations.Options{})
		require.Error(t, err, location)
		require.NotContains(t, err.Error(), "secret")
		require.NotErrorIs(t, err, persist.ErrUnavailable, "it does not pass by itself")
	}
}

// A cluster with TLS is opened with a certificate that it trusts, and with no other.
//
// Proves STORE-12.
func TestTLS(t *testing.T) {
	files := certificates(t)
	c, err := etcdtest.Start(1, etcdtest.Options{Certificate: files["cert"], Key: files["key"], Authority: files["ca"]})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	at := "etcd://" + c.Members[0].Client + "/chat"
	short := etcd.Config{Timeout: 300 * time.Millisecond, AttemptTimeout: 300 * time.Millisecond}
	for _, options := range []string{"", "?tls=true", "?ca=" + files["ca"]} {
		_, err := etcd.OpenLocation(t.Context(), at+options, short)
		require.Error(t, err, options)
	}
	store, err := etcd.OpenLocation(t.Context(), at+"?ca="+files["ca"]+"&cert="+files["cert"]+"&key="+files["key"], etcd.Config{})
	require.NoError(t, err)
	defer store.Close()
	create(t, store, persist.Key{Kind: "k", ID: "1"})
}

// certificates writes a certificate for this host, which is its own authority.
func certificates(t *testing.T) map[string]string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	files, dir := map[string]string{}, t.TempDir()
	for name, block := range map[string]*pem.Block{
		"cert": {Type: "CERTIFICATE", Bytes: cert}, "ca": {Type: "CERTIFICATE", Bytes: cert}, "key": {Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		files[name] = filepath.Join(dir, name+".pem")
		require.NoError(t, os.WriteFile(files[name], pem.EncodeToMemory(block), 0o600))
	}
	return files
}
