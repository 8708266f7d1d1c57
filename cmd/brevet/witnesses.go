package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/witness"
	"github.com/brevet-dev/brevet/internal/safehttp"
)

// check reports what is wrong with a witness without reading its file.
func (w WitnessConfig) check() error {
	name := "witnesses." + w.Name
	return errors.Join(required("witnesses.name", w.Name), required(name+".url", w.URL), required(name+".key", w.Key),
		w.ReachConfig.check(name))
}

// check reports what is wrong with an anchor without reading its file.
func (a AnchorConfig) check() error {
	name := "anchors." + a.Name
	return errors.Join(required("anchors.name", a.Name), a.ReachConfig.check(name),
		exactlyOne(name, choice{"file", a.File != ""}, choice{"url", a.URL != ""}, choice{"git", a.Git != ""}))
}

func (w WitnessConfig) spec() (witness.Spec, error) {
	target, err := w.target(w.URL)
	if err != nil {
		return witness.Spec{}, fmt.Errorf("witnesses.%s: %w", w.Name, err)
	}
	return witness.Spec{Name: w.Name, Key: w.Key, Target: target}, nil
}

func (a AnchorConfig) anchor() (witness.Anchor, error) {
	var place witness.Place
	var err error
	switch {
	case a.File != "":
		place = witness.File(a.File)
	case a.Git != "":
		place, err = witness.NewGit(a.Git)
	default:
		var target safehttp.Target
		if target, err = a.target(a.URL); err == nil {
			place, err = witness.NewURL(target)
		}
	}
	if err != nil {
		return witness.Anchor{}, fmt.Errorf("anchors.%s: %w", a.Name, err)
	}
	return witness.Anchor{Name: a.Name, Place: place, Every: a.Every}, nil
}

// seal starts the tasks that sign the ledger's checkpoints and deliver them to witnesses and anchors. Before the first
// checkpoint is signed, it requires the ledger to continue the last checkpoint in each anchor file, which may be from an
// earlier run.
func (s *service) seal(ctx context.Context, cfg Config, book *ledger.Ledger, key notary, gauges *httpapi.Gauges) error {
	carrier, err := s.openCarrier(cfg, book, gauges)
	if err != nil {
		return err
	}
	keys, err := key.Keys(ctx)
	if err != nil {
		return fmt.Errorf("reading the log's keys: %w", err)
	}
	for _, a := range cfg.Anchors {
		if a.File == "" {
			continue
		}
		last, err := witness.File(a.File).Last(keys...)
		if err == nil {
			err = book.Expect(ctx, last)
		}
		if err != nil {
			return fmt.Errorf("anchors.%s: comparing the ledger with %s: %w", a.Name, a.File, err)
		}
	}
	s.tasks.Go(func() error { return ended(ctx, book.Seal(ctx, key)) })
	s.tasks.Go(func() error { return ended(ctx, carrier.Run(ctx)) })
	return nil
}

func (s *service) openCarrier(cfg Config, book *ledger.Ledger, gauges *httpapi.Gauges) (*witness.Carrier, error) {
	carried := witness.Config{
		Log: book, Logger: s.log, OnCosigned: gauges.Cosigned,
		OnFailure: func(name string, why witness.Why) { gauges.NotCosigned(name, string(why)) },
	}
	for _, w := range cfg.Witnesses {
		spec, err := w.spec()
		if err != nil {
			return nil, err
		}
		carried.Witnesses = append(carried.Witnesses, spec)
	}
	for _, a := range cfg.Anchors {
		anchor, err := a.anchor()
		if err != nil {
			return nil, err
		}
		carried.Anchors = append(carried.Anchors, anchor)
	}
	return witness.New(carried)
}
