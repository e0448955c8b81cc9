// Command promql holds alerts and dashboards against Prometheus' own code.
//
// It reads one request from standard input, as JSON, and writes one answer: what its parsers say of rules and
// expressions, what each expression asks for, and which alerts fire on given series. Series are written as promtool
// writes them (`metric{label="value"} 0+1x10`), a sample every step.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/annotations"
)

// step is the time between two samples, and between two evaluations of a rule: the chart's default scrape interval.
const step = 30 * time.Second

// Request is everything that is asked in one run.
type Request struct {
	// Rules is a rule file.
	Rules string `json:"rules"`
	// Expressions are to be parsed; those of the rules are parsed anyway.
	Expressions []string `json:"expressions"`
	// Scenes are series to hold the alerts against.
	Scenes []Scene `json:"scenes"`
}

// Scene is what Prometheus scraped, from time 0 on.
type Scene struct {
	Series []string `json:"series"`
	// Minutes is when to look.
	Minutes int `json:"minutes"`
}

// Answer answers each part of the request in its order.
type Answer struct {
	// Wrong is what Prometheus refuses; the rest is empty then.
	Wrong []string `json:"wrong"`
	// Asked is what each expression asks for, those of the rules first.
	Asked [][]Selector `json:"asked"`
	// Firing are the alerts that fire in each scene.
	Firing [][]Alert `json:"firing"`
}

// Selector is a metric and the labels of it that an expression reads.
type Selector struct {
	Metric string   `json:"metric"`
	Labels []string `json:"labels"`
}

// Alert is one that fires, as it would reach a person.
type Alert struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

var expressions = parser.NewParser(parser.Options{})

func main() {
	var request Request
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		fail(err)
	}
	answer, err := answer(request)
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fail(err)
	}
}

func answer(request Request) (Answer, error) {
	answer := Answer{Wrong: []string{}, Asked: [][]Selector{}, Firing: [][]Alert{}}
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	groups, errs := rulefmt.Parse([]byte(request.Rules), false, model.LegacyValidation, expressions, logger)
	for _, err := range errs {
		answer.Wrong = append(answer.Wrong, err.Error())
	}
	if len(errs) > 0 {
		return answer, nil
	}
	var rules []rulefmt.Rule
	var texts []string
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			rules = append(rules, rule)
			texts = append(texts, rule.Expr)
		}
	}
	for _, text := range append(texts, request.Expressions...) {
		expression, err := expressions.ParseExpr(text)
		if err != nil {
			answer.Wrong = append(answer.Wrong, fmt.Sprintf("%s: %v", text, err))
			continue
		}
		answer.Asked = append(answer.Asked, asked(expression))
	}
	if len(answer.Wrong) > 0 {
		return answer, nil
	}
	for _, scene := range request.Scenes {
		alerts, err := firing(rules, scene)
		if err != nil {
			return answer, err
		}
		answer.Firing = append(answer.Firing, alerts)
	}
	return answer, nil
}

// asked lists the selectors of an expression. A label by which an expression groups or matches is read of every metric
// below it, but for those that only say which of the others count.
func asked(expression parser.Expr) []Selector {
	selectors := []Selector{}
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		var names []string
		for _, matcher := range selector.LabelMatchers {
			if matcher.Name != labels.MetricName {
				names = append(names, matcher.Name)
			}
		}
		below := node
	ancestors:
		for _, above := range slices.Backward(path) {
			switch above := above.(type) {
			case *parser.AggregateExpr:
				names = append(names, above.Grouping...)
			case *parser.BinaryExpr:
				if above.VectorMatching != nil {
					names = append(names, above.VectorMatching.MatchingLabels...)
				}
				if (above.Op == parser.LAND || above.Op == parser.LUNLESS) && above.RHS == below {
					break ancestors
				}
			}
			below = above
		}
		slices.Sort(names)
		selectors = append(selectors, Selector{Metric: selector.Name, Labels: append([]string{}, slices.Compact(names)...)})
		return nil
	})
	return selectors
}

// firing evaluates every alert at every step of a scene. An alert fires when its expression held at each evaluation for
// as long as its `for` says (see rules/alerting.go, AlertingRule.Eval).
func firing(rules []rulefmt.Rule, scene Scene) ([]Alert, error) {
	queryable, err := queryable(scene.Series)
	if err != nil {
		return nil, err
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: expressions})
	query := func(ctx context.Context, text string, at time.Time) (promql.Vector, error) {
		query, err := engine.NewInstantQuery(ctx, queryable, nil, text, at)
		if err != nil {
			return nil, err
		}
		defer query.Close()
		result := query.Exec(ctx)
		if result.Err != nil {
			return nil, result.Err
		}
		if scalar, err := result.Scalar(); err == nil {
			return promql.Vector{{T: scalar.T, F: scalar.V}}, nil
		}
		vector, err := result.Vector()
		// What the query points at is used again once it is closed.
		return slices.Clone(vector), err
	}
	ctx := context.Background()
	end := time.UnixMilli(0).Add(time.Duration(scene.Minutes) * time.Minute)
	alerts := []Alert{}
	for _, rule := range rules {
		since := map[string]time.Time{}
		var last promql.Vector
		for at := time.UnixMilli(0); !at.After(end); at = at.Add(step) {
			if last, err = query(ctx, rule.Expr, at); err != nil {
				return nil, fmt.Errorf("%s: %w", rule.Alert, err)
			}
			holds := map[string]time.Time{}
			for _, sample := range last {
				key := sample.Metric.String()
				holds[key] = at
				if began, ok := since[key]; ok {
					holds[key] = began
				}
			}
			since = holds
		}
		for _, sample := range last {
			if end.Sub(since[sample.Metric.String()]) < time.Duration(rule.For) {
				continue
			}
			alert, err := alert(ctx, rule, sample, end, query)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", rule.Alert, err)
			}
			alerts = append(alerts, alert)
		}
	}
	return alerts, nil
}

// alert is what Prometheus sends of a sample of the rule's expression.
func alert(ctx context.Context, rule rulefmt.Rule, sample promql.Sample, at time.Time, query template.QueryFunc) (Alert, error) {
	alert := Alert{Name: rule.Alert, Labels: sample.Metric.DropMetricName().Map(), Annotations: map[string]string{}}
	data := template.AlertTemplateData(alert.Labels, nil, "", sample)
	definitions := "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}"
	for name, text := range rule.Annotations {
		expander := template.NewTemplateExpander(ctx, definitions+text, name, data, model.TimeFromUnixNano(at.UnixNano()), query, &url.URL{}, nil)
		expanded, err := expander.Expand()
		if err != nil {
			return alert, err
		}
		alert.Annotations[name] = strings.TrimSpace(expanded)
	}
	for name, value := range rule.Labels {
		alert.Labels[name] = value
	}
	return alert, nil
}

// queryable serves the series from memory.
func queryable(texts []string) (storage.Queryable, error) {
	var all []promql.Series
	for _, text := range texts {
		metric, values, err := expressions.ParseSeriesDesc(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		series := promql.Series{Metric: metric}
		for number, value := range values {
			if !value.Omitted {
				at := (time.Duration(number) * step).Milliseconds()
				series.Floats = append(series.Floats, promql.FPoint{T: at, F: value.Value})
			}
		}
		all = append(all, series)
	}
	slices.SortFunc(all, func(one, other promql.Series) int { return labels.Compare(one.Metric, other.Metric) })
	choose := func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		chosen := &seriesSet{at: -1}
		for _, series := range all {
			refuses := func(matcher *labels.Matcher) bool { return !matcher.Matches(series.Metric.Get(matcher.Name)) }
			if !slices.ContainsFunc(matchers, refuses) {
				chosen.series = append(chosen.series, series)
			}
		}
		return chosen
	}
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: choose}}, nil
}

// seriesSet is a storage.SeriesSet in memory.
type seriesSet struct {
	series []promql.Series
	at     int
}

func (set *seriesSet) Next() bool {
	set.at++
	return set.at < len(set.series)
}

func (set *seriesSet) At() storage.Series { return promql.NewStorageSeries(set.series[set.at]) }

func (set *seriesSet) Err() error { return nil }

func (set *seriesSet) Warnings() annotations.Annotations { return nil }

func fail(err error) {
	fmt.Fprintln(os.Stderr, "promql:", err)
	os.Exit(1)
}
