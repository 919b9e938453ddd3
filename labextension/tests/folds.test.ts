import { expect, test } from 'vitest';
import { nodeGroups, rankGroups, troubled } from '../src/core/folds';
import { rankNames, shortRankSet } from '../src/core/format';
import { Rank } from '../src/core/types';
import { node, rank, slot } from './fake';

const ranks = (numbers: number[], more: Partial<Rank>): Rank[] => numbers.map(each => rank(each, more));
const told = (all: Rank[]): [string, string, number[]][] =>
  rankGroups(all).map(({ label, reason, members }) => [label, reason, members.map(each => each.rank)]);

test('ranks that do the same are one group, the troubled ones first', () => {
  const all = [
    ...ranks([0, 1, 9], { state: 'running' }),
    ...ranks([2, 3], { state: 'waiting', detail: 'waits in all_reduce (t.py:4)' }),
    ...ranks([4], { state: 'failed', detail: 'ValueError: no' }),
    ...ranks([5], { trouble: 'GPU 3 has fallen off the bus' }),
    ...ranks([6], { state: 'unreachable', detail: 'its node does not answer' }),
    ...ranks([7], { state: 'dead', detail: 'exited with code 3' }),
    ...ranks([8, 10], { state: 'dead', detail: 'likely out of memory' })
  ];
  expect(told(all)).toEqual([
    ['dead', 'likely out of memory', [8, 10]],
    ['dead', 'exited with code 3', [7]],
    ['unreachable', 'its node does not answer', [6]],
    ['with a troubled GPU', 'GPU 3 has fallen off the bus', [5]],
    ['failed', 'ValueError: no', [4]],
    ['waiting', 'in all_reduce (t.py:4)', [2, 3]],
    ['running', '', [0, 1, 9]]
  ]);
});

test('a dead rank is dead, also when its GPU is troubled', () => {
  expect(told([rank(0, { state: 'dead', detail: 'ended', trouble: 'GPU 0 is lost' })])).toEqual([
    ['dead', 'ended', [0]]
  ]);
});

test('many reasons that differ by their numbers are one', () => {
  const all = [0, 1, 2, 3, 4].map(each =>
    rank(each, { state: 'failed', detail: `ValueError: batch ${each}.5` })
  );
  expect(told(all)).toEqual([['failed', 'ValueError: batch …', [0, 1, 2, 3, 4]]]);
  expect(told(all.slice(0, 4))).toHaveLength(4);
});

test('of many different reasons the most frequent have rows of their own', () => {
  const words = ['a', 'a', 'b', 'c', 'c', 'c', 'd', 'e', 'f'];
  const all = words.map((word, place) => rank(place, { state: 'failed', detail: word }));
  expect(told(all)).toEqual([
    ['failed', 'c', [3, 4, 5]],
    ['failed', 'a', [0, 1]],
    ['failed', 'b', [2]],
    ['failed', 'for other reasons', [6, 7, 8]]
  ]);
});

test('nodes fold by how they are', () => {
  const nodes = [
    node('node0'),
    node('node1', [], { state: 'dead', message: 'its allocator died' }),
    node('node2', [slot(0, { error: 'it has fallen off the bus' })]),
    node('node3', [], { state: 'silent', message: 'it does not answer' }),
    node('node4')
  ];
  expect(nodeGroups(nodes).map(({ label, members }) => [label, members.map(({ id }) => id)])).toEqual([
    ['gone', ['node1']],
    ['silent', ['node3']],
    ['with a troubled GPU', ['node2']],
    ['ok', ['node0', 'node4']]
  ]);
  expect(troubled(nodes)).toBe(3);
});

test('names of many ranks are never long', () => {
  const odd = Array.from({ length: 1000 }, (_, place) => 2 * place + 1);
  expect(shortRankSet(odd)).toBe('1,3,5,7,9,11,13,15,… (1,000)');
  expect(rankNames([0, 1, 2, 5])).toBe('ranks 0-2,5');
});
