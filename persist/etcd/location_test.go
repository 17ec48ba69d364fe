package etcd

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestParseLocation(t *testing.T) {
	for location, want := range map[string]struct {
		endpoints, prefix, user, password string
		tls                               bool
	}{
		"etcd://a":                        {endpoints: "a:2379"},
		"etcd://a:1,b,[::1],[::1]:7/chat": {endpoints: "a:1 b:2379 [::1]:2379 [::1]:7", prefix: "chat"},
		"etcd://me:p%40ss@a/x%2Fy":        {endpoints: "a:2379", prefix: "x/y", user: "me", password: "p@ss"},
		"etcd://me:p@ss:word@a/":          {endpoints: "a:2379", user: "me", password: "p@ss:word"},
		"etcd://a/deep/er?tls=true":       {endpoints: "a:2379", prefix: "deep/er", tls: true},
		"etcd://a?tls=false":              {endpoints: "a:2379"},
	} {
		endpoints, config, err := parseLocation(location, Config{})
		if err != nil || strings.Join(endpoints, " ") != want.endpoints || config.Prefix != want.prefix ||
			config.Username != want.user || config.Password != want.password || (config.TLS != nil) != want.tls {
			t.Errorf("%s: %v %+v %v", location, endpoints, config, err)
		}
	}
	for _, location := range []string{
		"", "a", "http://a", "etcd://", "etcd:///prefix", "etcd://a,,b", "etcd://:secret@a", "etcd://me:%zzsecret@a",
		"etcd://me:secret@a/%zz", "etcd://me:secret@a?other=1", "etcd://me:secret@a?cert=x", "etcd://me:secret@a?ca=/does/not/exist",
		"etcd://me:secret@a?%zz",
	} {
		_, err := OpenLocation(context.Background(), location, Config{})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", location, err)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{Prefix: "a\x00"}, {Prefix: "\xff"}, {AttemptTimeout: -1}, {Timeout: -1}, {Tick: time.Microsecond}, {Tick: time.Minute},
		{MaxTxnOps: 3}, {MaxRequestBytes: 100},
	} {
		if err := c.withDefaults().check(); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	c := Config{Prefix: "chat"}.withDefaults()
	if err := c.check(); err != nil || c.Prefix != "chat/" {
		t.Error(c.Prefix, err)
	}
	if l := c.limits(); l.MaxKeys < 100 || l.MaxBytes < 1<<20 {
		t.Errorf("the limits of a cluster with etcd's defaults are %+v", l)
	}
}

// Keys with odd names are told apart, and sort as the contract says.
func TestKeys(t *testing.T) {
	p := keyspace("p/")
	seen := map[string][2]string{}
	for _, kind := range []string{"a", "a\x01", "ab", "\u00ff", "a/b"} {
		for _, id := range []string{"a", "\x01a", "b", "ba", "\u00ff\u00ff", "m", "/"} {
			for space, rest := range map[string]string{
				spaceRecord: id, spaceLabel: "label\x00" + id, spaceDue: sortable(time.UnixMicro(-1)) + id, spaceTombstone: id,
				spaceExpires: sortable(time.UnixMicro(0)) + id, // eight bytes with U+0000
			} {
				key := p.of(space, kind, rest)
				if other, ok := seen[key]; ok {
					t.Errorf("%q is the key of %q and %q", key, other, [2]string{kind, id})
				}
				seen[key] = [2]string{kind, id}
				got, ok := keyOf(space, strings.TrimPrefix(key, p.of(space, "")))
				if !ok || got.Kind != kind || got.ID != id {
					t.Errorf("%q gives %q", key, got)
				}
			}
		}
	}
	last := ""
	for _, at := range []time.Time{{}, time.UnixMicro(-1), time.UnixMicro(0), time.UnixMicro(1), time.Unix(1<<40, 0)} {
		text := sortable(at)
		back, err := parseTime([]byte(text))
		if err != nil || !back.Equal(at) || text <= last {
			t.Errorf("%s gives %q and %s", at, text, back)
		}
		last = text
	}
}
