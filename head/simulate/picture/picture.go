// Package picture draws what a simulation came to: how full the cluster was over time, and
// when the largest jobs waited and ran. It is the only importer of the plotting library.
package picture

import (
	"cmp"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/troupe-runtime/troupe/head/simulate"
)

// Size of a picture, and bounds of what it shows.
const (
	width, height = 24 * vg.Centimeter, 13 * vg.Centimeter
	mostPoints    = 4000
	mostBars      = 200
)

var (
	blue = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	grey = color.RGBA{R: 0xc8, G: 0xc8, B: 0xc8, A: 0xff}
	red  = color.RGBA{R: 0xb0, G: 0x30, B: 0x30, A: 0xff}
)

// Write draws both pictures into a folder and returns their paths. kind is svg or png.
func Write(dir, kind string, r *simulate.Result) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the pictures: %w", err)
	}
	var paths []string
	for _, x := range []struct {
		name string
		make func(*simulate.Result) (*plot.Plot, error)
	}{{"utilisation", utilisation}, {"gantt", gantt}} {
		p, err := x.make(r)
		if err != nil {
			return paths, fmt.Errorf("draw %s: %w", x.name, err)
		}
		path := filepath.Join(dir, x.name+"."+kind)
		if err := p.Save(width, height, path); err != nil {
			return paths, fmt.Errorf("write %s: %w", path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func days(d time.Duration) float64 { return d.Hours() / 24 }

// utilisation is a line of the GPUs that were held, below one of those that were there.
func utilisation(r *simulate.Result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "GPUs held"
	p.X.Label.Text, p.Y.Label.Text = "days", "GPUs"
	p.Y.Min = 0
	held, there := thin(r.Samples, func(s simulate.Sample) int64 { return s.Used }), thin(r.Samples, func(s simulate.Sample) int64 { return s.There })
	for _, x := range []struct {
		name   string
		points plotter.XYs
		colour color.Color
	}{{"there", there, grey}, {"held", held, blue}} {
		if len(x.points) == 0 {
			continue
		}
		line, err := plotter.NewLine(x.points)
		if err != nil {
			return nil, err
		}
		line.Color, line.StepStyle, line.Width = x.colour, plotter.PostStep, vg.Points(1)
		p.Add(line)
		p.Legend.Add(x.name, line)
	}
	p.Legend.Top = true
	return p, nil
}

// thin takes means over equal stretches of time, so that a picture of a year is no larger
// than that of a day.
func thin(samples []simulate.Sample, value func(simulate.Sample) int64) plotter.XYs {
	if len(samples) == 0 {
		return nil
	}
	if len(samples) <= mostPoints {
		out := make(plotter.XYs, len(samples))
		for i, s := range samples {
			out[i].X, out[i].Y = days(s.At), float64(value(s))/1000
		}
		return out
	}
	first, last := samples[0].At, samples[len(samples)-1].At
	step := (last-first)/mostPoints + 1
	sums := make([]float64, mostPoints+1)
	for i, s := range samples {
		until := last
		if i+1 < len(samples) {
			until = samples[i+1].At
		}
		for at := s.At; at < until; {
			k := (at - first) / step
			end := min(until, first+(k+1)*step)
			sums[k] += (end - at).Seconds() * float64(value(s)) / 1000
			at = end
		}
	}
	out := make(plotter.XYs, 0, len(sums))
	for k, sum := range sums {
		begin := first + time.Duration(k)*step
		if long := min(step, last-begin); long > 0 {
			out = append(out, plotter.XY{X: days(begin), Y: sum / long.Seconds()})
		}
	}
	return out
}

// gantt shows the jobs that held the most, in the order of their submission.
func gantt(r *simulate.Result) (*plot.Plot, error) {
	var jobs []*simulate.Outcome
	for i := range r.Jobs {
		if r.Jobs[i].Ran {
			jobs = append(jobs, &r.Jobs[i])
		}
	}
	all := len(jobs)
	slices.SortStableFunc(jobs, func(a, b *simulate.Outcome) int { return cmp.Compare(b.Busy, a.Busy) })
	jobs = jobs[:min(len(jobs), mostBars)]
	slices.SortStableFunc(jobs, func(a, b *simulate.Outcome) int { return cmp.Compare(a.Job.Submit, b.Job.Submit) })
	p := plot.New()
	p.Title.Text = fmt.Sprintf("The %d of %d jobs that held the most", len(jobs), all)
	p.X.Label.Text, p.Y.Label.Text = "days", "jobs, in order of submission"
	b := &bars{jobs: jobs, end: r.Ended}
	p.Add(b)
	for _, x := range []struct {
		name string
		c    color.Color
	}{{"waits", grey}, {"from its first start to its end", blue}, {"the same, failed or cut off", red}} {
		p.Legend.Add(x.name, swatch{x.c})
	}
	p.Legend.Top, p.Legend.Left = true, true
	return p, nil
}

// bars is one bar for each job: grey while it waits, coloured from its start to its end.
type bars struct {
	jobs []*simulate.Outcome
	end  time.Duration
}

// Plot implements plot.Plotter.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	bar := func(i int, from, to time.Duration, colour color.Color) {
		low, high := y(float64(i)+0.1), y(float64(i)+0.9)
		left, right := x(days(from)), x(days(to))
		c.FillPolygon(colour, c.ClipPolygonXY([]vg.Point{{X: left, Y: low}, {X: right, Y: low}, {X: right, Y: high}, {X: left, Y: high}}))
	}
	for i, o := range b.jobs {
		end, colour := o.Ended, blue
		if !o.Done {
			colour = red
			if o.Failed == "" {
				end = b.end
			}
		}
		bar(i, o.Job.Submit, o.Started, grey)
		bar(i, o.Started, end, colour)
	}
}

// DataRange implements plot.DataRanger.
func (b *bars) DataRange() (xmin, xmax, ymin, ymax float64) {
	for i, o := range b.jobs {
		if at := days(o.Job.Submit); i == 0 || at < xmin {
			xmin = at
		}
	}
	return xmin, max(days(b.end), xmin+1e-6), 0, float64(max(1, len(b.jobs)))
}

// swatch is a patch of colour in the legend.
type swatch struct{ c color.Color }

// Thumbnail implements plot.Thumbnailer.
func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.c, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y}})
}
