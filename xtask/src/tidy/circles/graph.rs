//! The graph of files that need each other, and its circles.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::resolve::Resolver;

/// The files of a crate, with the lines at which they name each other.
#[derive(Debug, Default)]
pub struct Graph {
    files: Vec<PathBuf>,
    edges: BTreeMap<Edge, BTreeSet<usize>>,
}

/// One file names something of another; both by index.
type Edge = (usize, usize);

/// An edge to remove.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut {
    pub from: PathBuf,
    pub to: PathBuf,
    /// Lines on which the first file names the second.
    pub lines: Vec<usize>,
    /// Files in the largest remaining circle after the cut.
    pub leaves: usize,
}

impl Graph {
    /// Resolves every path of the crate.
    pub fn of(resolver: &Resolver) -> Self {
        let mut graph = Self::default();
        for (from, to, line) in resolver.references() {
            graph.add(&from, &to, line);
        }
        graph
    }

    fn add(&mut self, from: &Path, to: &Path, line: usize) {
        if from != to {
            let edge = (self.index_of(from), self.index_of(to));
            self.edges.entry(edge).or_default().insert(line);
        }
    }

    fn index_of(&mut self, file: &Path) -> usize {
        self.files.iter().position(|known| known == file).unwrap_or_else(|| {
            self.files.push(file.to_owned());
            self.files.len() - 1
        })
    }

    /// The files of the largest circle; empty if there are no circles.
    pub fn largest_circle(&self) -> BTreeSet<&Path> {
        let circle = largest_circle(self.files.len(), self.edges.keys().copied());
        circle.into_iter().map(|file| self.files[file].as_path()).collect()
    }

    /// The edges to remove, one after the other, until no circle has more than `limit` files: at
    /// most `count` of them, each the one that leaves the smallest circle, and of those the one
    /// that is named at the fewest lines.
    pub fn cuts(&self, limit: usize, count: usize) -> Vec<Cut> {
        let mut left: BTreeSet<Edge> = self.edges.keys().copied().collect();
        let mut cuts = Vec::new();
        while cuts.len() < count {
            let circle = largest_circle(self.files.len(), left.iter().copied());
            if circle.len() <= limit {
                break;
            }
            let mut inside = left.clone();
            inside.retain(|(from, to)| circle.contains(from) && circle.contains(to));
            let leaves = |edge: &Edge| {
                let rest = inside.iter().copied().filter(|other| other != edge);
                largest_circle(self.files.len(), rest).len()
            };
            let best = inside.iter().map(|edge| (leaves(edge), self.edges[edge].len(), *edge)).min();
            let Some((leaves, _, edge)) = best else { break };
            left.remove(&edge);
            cuts.push(Cut {
                from: self.files[edge.0].clone(),
                to: self.files[edge.1].clone(),
                lines: self.edges[&edge].iter().copied().collect(),
                leaves,
            });
        }
        cuts
    }
}

/// The largest strongly connected component of two or more files, by Tarjan's algorithm.
fn largest_circle(files: usize, edges: impl Iterator<Item = Edge>) -> Vec<usize> {
    let mut next = vec![Vec::new(); files];
    edges.for_each(|(from, to)| next[from].push(to));
    let mut search =
        Search { next, met: vec![None; files], on_stack: vec![false; files], ..Search::default() };
    for file in 0..files {
        if search.met[file].is_none() {
            search.visit(file);
        }
    }
    search.largest
}

#[derive(Default)]
struct Search {
    next: Vec<Vec<usize>>,
    /// Order in which files were visited.
    met: Vec<Option<usize>>,
    count: usize,
    stack: Vec<usize>,
    on_stack: Vec<bool>,
    largest: Vec<usize>,
}

impl Search {
    /// Returns the earliest file on the stack that can be reached from this one.
    fn visit(&mut self, file: usize) -> usize {
        let order = self.count;
        self.count += 1;
        self.met[file] = Some(order);
        self.stack.push(file);
        self.on_stack[file] = true;
        let mut lowest = order;
        for step in 0..self.next[file].len() {
            let next = self.next[file][step];
            lowest = match self.met[next] {
                None => lowest.min(self.visit(next)),
                Some(order) if self.on_stack[next] => lowest.min(order),
                Some(_) => lowest,
            };
        }
        if lowest == order {
            let start = self.stack.iter().position(|member| *member == file).unwrap_or_default();
            let component = self.stack.split_off(start);
            component.iter().for_each(|member| self.on_stack[*member] = false);
            if component.len() > 1 && component.len() > self.largest.len() {
                self.largest = component;
            }
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (line, (from, to)) in edges.iter().enumerate() {
            graph.add(Path::new(from), Path::new(to), line);
        }
        graph
    }

    fn circle(edges: &[(&str, &str)]) -> Vec<String> {
        graph(edges).largest_circle().iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn the_largest_dependency_cycle_is_found() {
        assert!(circle(&[]).is_empty());
        assert!(circle(&[("a", "a")]).is_empty(), "a file may name itself");
        assert!(circle(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
        assert_eq!(circle(&[("a", "b"), ("b", "a"), ("b", "c")]), ["a", "b"]);
        let two = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c"), ("e", "f")];
        assert_eq!(circle(&two), ["c", "d", "e"]);
        // Two circles through one file are one.
        assert_eq!(circle(&[("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")]), ["a", "b", "c"]);
    }

    #[test]
    fn the_best_edges_to_cut_are_named() {
        // A ring of four: any edge breaks it, and the one with the fewest lines is the cheapest.
        let mut ring = graph(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]);
        for (from, to) in [("a", "b"), ("b", "c"), ("d", "a")] {
            ring.add(Path::new(from), Path::new(to), 99);
        }
        let (from, to) = ("c".into(), "d".into());
        assert_eq!(ring.cuts(3, 5), [Cut { from, to, lines: vec![2], leaves: 0 }]);
        // Two rings that share an edge: that one breaks both.
        let shared = graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("b", "d"), ("d", "a")]);
        let cuts = shared.cuts(1, 5);
        assert_eq!((cuts.len(), cuts[0].leaves), (1, 0));
        assert_eq!((cuts[0].from.as_path(), cuts[0].to.as_path()), (Path::new("a"), Path::new("b")));
        assert!(shared.cuts(4, 5).is_empty(), "nothing to cut within the limit");
    }
}
