export * from './types';
export * from './context';
export * from './format';
export * from './store';
export * from './transport';
export { Panel } from './components/Panel';
export { LogViewer } from './components/LogViewer';
export { Mark } from './components/basics';
