package otel_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pawl-go/pawl/otel"
)

// scrape does everything that a metric counts, and returns the labels of each name that Prometheus
// would read over HTTP.
func scrape(t *testing.T) map[string]map[string]bool {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	require.NoError(t, err)
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	o, err := otel.New(otel.Config{Meters: provider})
	require.NoError(t, err)
	rt, tap := open(t, o)
	exercise(t, rt, tap)

	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	defer server.Close()
	answer, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	names := map[string]map[string]bool{}
	label := regexp.MustCompile(`([a-z_]+)="`)
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:strings.IndexAny(line, "{ ")]
		if names[name] == nil {
			names[name] = map[string]bool{}
		}
		for _, found := range label.FindAllStringSubmatch(line, -1) {
			names[name][found[1]] = true
		}
	}
	return names
}

// expressions returns all PromQL of the dashboard, by panel.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	all := map[string][]string{}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			all["variable "+v.Name] = append(all["variable "+v.Name], v.Query)
		}
	}
	for _, p := range dashboard.Panels {
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Targets, p.Title)
		require.NotContains(t, all, p.Title, "two panels with one title")
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], target.Expr)
		}
	}
	require.NotEmpty(t, all)
	return all
}

var (
	literals = regexp.MustCompile(`"[^"]*"|\[[^]]*\]|\b[0-9.]+\b`)
	words    = regexp.MustCompile(`[A-Za-z_:][A-Za-z0-9_:]*`)
)

// unknownWords returns the words of an expression that are no function, no metric that was scraped, and
// no label of the metrics in the expression.
func unknownWords(expression string, scraped map[string]map[string]bool) (out []string) {
	known := map[string]bool{"sum": true, "by": true, "rate": true, "histogram_quantile": true, "label_values": true}
	all := words.FindAllString(literals.ReplaceAllString(expression, ""), -1)
	metrics := 0
	for _, word := range all {
		if labels, ok := scraped[word]; ok {
			metrics++
			known[word] = true
			for label := range labels {
				known[label] = true
			}
		}
	}
	if metrics == 0 {
		return all
	}
	for _, word := range all {
		if !known[word] {
			out = append(out, word)
		}
	}
	return out
}

// Every expression of the dashboard uses metrics and labels that the exporter exposes, and every
// metric is on the dashboard.
func TestDashboard(t *testing.T) {
	scraped := scrape(t)
	shown := ""
	for panel, all := range expressions(t) {
		for _, expression := range all {
			assert.Empty(t, unknownWords(expression, scraped), "%s: %s", panel, expression)
			shown += expression + "\n"
		}
	}
	for name := range scraped {
		family := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			family = strings.TrimSuffix(family, suffix)
		}
		if strings.HasPrefix(name, "pawl_") {
			assert.Contains(t, shown, family, "no panel shows it")
		}
	}
}

// The check of the dashboard finds a metric or a label that does not exist.
func TestUnknownWords(t *testing.T) {
	scraped := map[string]map[string]bool{"pawl_mutations_total": {"kind": true}}
	assert.Empty(t, unknownWords(`sum by (kind) (rate(pawl_mutations_total{kind=~"$kind"}[5m]))`, scraped))
	assert.Equal(t, []string{"verb"}, unknownWords(`sum by (verb) (rate(pawl_mutations_total[5m]))`, scraped))
	assert.Equal(t, []string{"pawl_conflicts"}, unknownWords(`pawl_mutations_total / pawl_conflicts`, scraped))
	assert.Contains(t, unknownWords(`sum(pawl_mutation_total)`, scraped), "pawl_mutation_total")
}
