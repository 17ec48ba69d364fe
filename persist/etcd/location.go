package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// OpenLocation opens the store at a location of the form
//
//	etcd://user:password@host:port,host:port/prefix?ca=file&cert=file&key=file
//
// All but the first host is optional. The port is 2379 if it is missing, and the prefix is
// [DefaultPrefix]. TLS is used with one of the options: tls=true with the authorities of the system,
// ca with those of a file, cert and key to show a certificate. What the location says replaces the
// fields of config. It returns an error for a malformed location, and the errors of [Open]. No error
// contains the password.
func OpenLocation(ctx context.Context, location string, config Config) (*Store, error) {
	endpoints, config, err := parseLocation(location, config)
	if err != nil {
		return nil, fmt.Errorf("etcd: bad location: %w", err)
	}
	return Open(ctx, endpoints, config)
}

// defaultPort is that of etcd for clients.
const defaultPort = "2379"

// parseLocation returns the endpoints of a location, and config with what it says. Its errors do not
// quote the location, which may contain a password.
func parseLocation(location string, config Config) ([]string, Config, error) {
	rest, ok := strings.CutPrefix(location, "etcd://")
	if !ok {
		return nil, config, errors.New("it does not start with etcd://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, prefix, _ := strings.Cut(rest, "/")
	if prefix != "" {
		unescaped, err := url.PathUnescape(prefix)
		if err != nil {
			return nil, config, errors.New("the prefix is malformed")
		}
		config.Prefix = unescaped
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, password, _ := strings.Cut(authority[:at], ":")
		var err1, err2 error
		config.Username, err1 = url.PathUnescape(user)
		config.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil || config.Username == "" {
			return nil, config, errors.New("the user or the password is malformed")
		}
		authority = authority[at+1:]
	}
	var endpoints []string
	for host := range strings.SplitSeq(authority, ",") {
		if host == "" {
			return nil, config, errors.New("a host is missing")
		}
		if !strings.Contains(host[strings.LastIndexByte(host, ']')+1:], ":") { // [::1] is a host without a port
			host += ":" + defaultPort
		}
		endpoints = append(endpoints, host)
	}
	if err := config.parseTLS(query); err != nil {
		return nil, config, err
	}
	return endpoints, config, nil
}

// parseTLS sets TLS from the options of a location.
func (c *Config) parseTLS(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the options are malformed")
	}
	for name := range values {
		switch name {
		case "tls", "ca", "cert", "key":
		default:
			return fmt.Errorf("unknown option %q", name)
		}
	}
	if len(values) == 0 || len(values) == 1 && values.Get("tls") == "false" {
		return nil
	}
	c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if file := values.Get("ca"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if c.TLS.RootCAs = x509.NewCertPool(); !c.TLS.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("%s contains no certificate", file)
		}
	}
	if values.Has("cert") != values.Has("key") {
		return errors.New("cert and key belong together")
	}
	if file := values.Get("cert"); file != "" {
		pair, err := tls.LoadX509KeyPair(file, values.Get("key"))
		if err != nil {
			return err
		}
		c.TLS.Certificates = []tls.Certificate{pair}
	}
	return nil
}
